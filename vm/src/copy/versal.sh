# Runs as root in the guest: the client on mainline's zynqmp_dma.
# Waits until a command succeeds, for a minute at most.
until_it_is() { tries=0; until "$@"; do tries=$((tries + 1)); [ $tries -lt 600 ] || return 1; sleep 0.1; done; }
probed() { [ "$(ls /sys/class/dma | wc -l)" -ge 8 ]; }
summaries() { [ "$(dmesg | grep -c 'dmatest.*summary')" -ge "$1" ]; }
insmod /zynqmp_dma.ko
until_it_is probed
channels=$(ls /sys/class/dma | wc -l)
if [ "$channels" -ge 8 ]; then echo "GUEST ok zynqmp_dma: $channels channels"; else echo "GUEST failed zynqmp_dma: $channels channels: $(dmesg | tail -3)"; fi
insmod /dmatest.ko timeout=10000 iterations=20 test_buf_size=8192
echo "" > /sys/module/dmatest/parameters/channel
echo 1 > /sys/module/dmatest/parameters/run
cat /sys/module/dmatest/parameters/wait > /dev/null
until_it_is summaries "$channels"
good=$(dmesg | grep "dmatest.*summary" | grep -c ' 0 failures')
if [ "$good" = "$channels" ]; then echo "GUEST ok dmatest: $good channels, 0 failures"; else echo "GUEST failed dmatest: $(dmesg | grep -i dmatest | tail -5)"; fi
rmmod dmatest
insmod /daqmeter_copy.ko region_mb=8 provider=zynqmp
/kmod_guest unordered
rmmod daqmeter_copy
