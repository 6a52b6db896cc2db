# Rented workers: machines that enrol with an invite, run what is open, and accept no connection.

data "aws_ssm_parameter" "debian" {
  name = "/aws/service/debian/release/12/latest/amd64"
}

data "aws_subnet" "chosen" {
  id = var.subnet_id
}

resource "aws_security_group" "worker" {
  name_prefix = "cipherhop-worker-"
  description = "Out only: a worker asks, nobody asks a worker."
  vpc_id      = data.aws_subnet.chosen.vpc_id
}

resource "aws_vpc_security_group_egress_rule" "out" {
  security_group_id = aws_security_group.worker.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
}

resource "aws_instance" "worker" {
  count                  = var.workers
  ami                    = data.aws_ssm_parameter.debian.value
  instance_type          = var.instance_type
  subnet_id              = var.subnet_id
  vpc_security_group_ids = [aws_security_group.worker.id]

  dynamic "instance_market_options" {
    for_each = var.spot_price == null ? [] : [var.spot_price]
    content {
      market_type = "spot"
      spot_options {
        max_price = instance_market_options.value
      }
    }
  }

  metadata_options {
    http_tokens = "required"
  }

  root_block_device {
    volume_size = var.disk_gib
    volume_type = "gp3"
    encrypted   = true
  }

  user_data = templatefile("${path.module}/cloud-init.yaml.tftpl", {
    coordinator    = var.coordinator
    invite         = var.invite
    ca_pem         = var.ca_pem
    name           = "rented-${count.index}"
    program_url    = var.program_url
    program_sha256 = var.program_sha256
    unit           = file("${path.module}/../systemd/cipherhop-worker.service")
  })
  user_data_replace_on_change = true

  tags = {
    Name = "cipherhop-worker-${count.index}"
  }
}

output "instances" {
  description = "The machines."
  value       = aws_instance.worker[*].id
}
