# Runs as root in a guest where every mapping for an engine is a bounce buffer (swiotlb=force) and where the memory of programs can be
# moved (movablecore).
if dmesg | grep -qi "software IO TLB"; then echo "GUEST ok $(dmesg | grep -i 'software IO TLB' | tail -1)"; else echo "GUEST failed no bounce buffers: $(cat /proc/cmdline)"; fi
insmod /softdma.ko channels=4
insmod /daqmeter_copy.ko region_mb=16
for case in both kept failing losing; do /kmod_guest $case; done
/daqmeter copy verify --path module --up-to 1MiB --times 1 --json > /tmp/verify
if grep -q verified /tmp/verify && ! grep -q -e failed -e waived /tmp/verify; then echo "GUEST ok verify: $(grep -c verified /tmp/verify) cases"; else echo "GUEST failed verify: $(cat /tmp/verify)"; fi
rmmod daqmeter_copy; rmmod softdma
/kmod_guest clean
