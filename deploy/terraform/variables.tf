variable "region" {
  description = "AWS region."
  type        = string
}

variable "subnet_id" {
  description = "Subnet with a way to the internet; the workers need no public name and accept no connection."
  type        = string
}

variable "workers" {
  description = "How many machines. All belong to one account, so they never confirm each other's results."
  type        = number
  default     = 1
}

variable "instance_type" {
  description = "Vector instructions count more than anything: c7i and newer have AVX-512 IFMA, m7i has more memory. A machine with a GPU works too, the engine computes on its processors."
  type        = string
  default     = "c7i.2xlarge"
}

variable "disk_gib" {
  description = "Disk for keys, inputs and checkpoints, GiB."
  type        = number
  default     = 100
}

variable "spot_price" {
  description = "Highest price per hour, US dollars; null for the on-demand price. A machine that is taken away loses one hop's work at most."
  type        = string
  default     = null
}

variable "coordinator" {
  description = "Address of the coordinator."
  type        = string

  validation {
    condition     = startswith(var.coordinator, "https://")
    error_message = "Workers on rented machines speak to the coordinator over TLS only: https://HOST:PORT."
  }
}

variable "invite" {
  description = "The operator's invite. It stands in the machines' user data: make one for this purpose and revoke it when they are enrolled."
  type        = string
  sensitive   = true
}

variable "ca_pem" {
  description = "Certificate authority of the coordinator (PEM) where it is none of the public ones; empty otherwise."
  type        = string
  default     = ""
}

variable "program_url" {
  description = "Where dist/cipherhop-worker of deploy/release.sh can be fetched, https."
  type        = string
}

variable "program_sha256" {
  description = "Its SHA-256, from dist/SHA256SUMS."
  type        = string

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.program_sha256))
    error_message = "A SHA-256 has 64 hexadecimal digits."
  }
}
