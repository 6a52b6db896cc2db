#!/bin/sh
# Runs a program on an emulated processor that has AVX-512 IFMA (Bochs, Ice Lake), for machines that lack it:
#
#   worker/ckks/emulate/avx512.sh PROGRAM [ARGUMENT...]
#
# for example the engine's unit tests, whose path `cargo test --release -p cipherhop-ckks --lib --no-run` prints:
#
#   worker/ckks/emulate/avx512.sh target/release/deps/cipherhop_ckks-0123456789abcdef --nocapture kernel ifma
#
# Prints what the program prints; exit status 0 if it ended with 0. Needs the Debian packages bochs, bochs-term,
# vgabios, isolinux, syslinux-common, genisoimage, cpio, busybox-static, bsdutils, and a Linux kernel (KERNEL=, by
# default the newest /boot/vmlinuz-*; the kernels of the linux-image-cloud-amd64 packages start fastest). The
# program may be linked dynamically: its libraries are taken along. CPU= chooses another model of `bochs -help cpu`,
# LIMIT= the time limit in seconds.
set -eu

kernel=${KERNEL:-$(ls -t /boot/vmlinuz-* 2>/dev/null | head -n 1)}
[ -n "$kernel" ] && [ -r "$kernel" ] || { echo "no Linux kernel: set KERNEL=" >&2; exit 2; }
[ $# -ge 1 ] || { echo "usage: $0 PROGRAM [ARGUMENT...]" >&2; exit 2; }
program=$1
shift

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A root file system with the program, its libraries and a shell.
root=$work/root
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp"
cp /bin/busybox "$root/bin/busybox"
cp "$program" "$root/program"
ldd "$program" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
quoted=
for argument in "$@"; do
    quoted="$quoted '$argument'"
done
cat > "$root/init" <<END
#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t devtmpfs none /dev
echo "emulated: \$(/bin/busybox grep -m 1 'model name' /proc/cpuinfo)"
/program$quoted
echo "exit status: \$?"
/bin/busybox poweroff -f
END
chmod +x "$root/init"

iso=$work/iso
mkdir -p "$iso"
(cd "$root" && find . | cpio --quiet -o -H newc) | gzip -1 > "$iso/initrd"
cp "$kernel" "$iso/linux"
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$iso/"
cat > "$iso/isolinux.cfg" <<END
default test
label test
  kernel /linux
  append initrd=/initrd earlyprintk=ttyS0,115200 console=ttyS0 mitigations=off tsc=reliable panic=-1
END
genisoimage -quiet -o "$work/boot.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 \
    -boot-info-table "$iso"

cat > "$work/bochsrc" <<END
cpu: model=${CPU:-corei7_icelake_u}, count=1, ips=100000000, reset_on_triple_fault=0
memory: guest=1024, host=1024
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
display_library: term
ata0-master: type=cdrom, path=$work/boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial
clock: sync=none
log: $work/log
panic: action=fatal
error: action=report
info: action=ignore
END
: > "$work/serial"
# Debian's build stops in its debugger first.
echo continue > "$work/go"
# The terminal display wants a terminal.
TERM=xterm timeout "${LIMIT:-3600}" script -qfc "bochs -q -rc $work/go -f $work/bochsrc" /dev/null > /dev/null 2>&1 < /dev/null &
bochs=$!
tail -n +1 -f "$work/serial" --pid $bochs | sed -u 's/\r$//' &
while kill -0 $bochs 2>/dev/null; do
    if grep -q '^exit status: ' "$work/serial"; then
        sleep 2
        kill $bochs 2>/dev/null || true
    fi
    sleep 1
done
wait
[ -n "${KEEP_LOG:-}" ] && cp "$work/log" "$KEEP_LOG"
grep -q '^exit status: 0' "$work/serial"
