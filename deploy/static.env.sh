# shellcheck shell=bash
# Sourced by scripts that build or use static programs: which target, and how it is linked.
case $(uname -m) in
  x86_64 | aarch64) arch=$(uname -m) ;;
  *) echo "static programs are built for x86_64 and aarch64 only, this is $(uname -m)" >&2; exit 1 ;;
esac
if command -v musl-gcc >/dev/null && rustup target list --installed 2>/dev/null | grep -qx "$arch-unknown-linux-musl"; then
  export CARGO_BUILD_TARGET=$arch-unknown-linux-musl
else
  export CARGO_BUILD_TARGET=$arch-unknown-linux-gnu
fi
# getrandom looks its system call up with dlsym, which a static program has not, and would open /dev/urandom instead.
export RUSTFLAGS='-C target-feature=+crt-static --cfg getrandom_backend="linux_getrandom"'
