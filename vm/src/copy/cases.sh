# Runs as root in the guest. Each case prints one line that begins with GUEST.
ok() { echo "GUEST ok $*"; }
failed() { echo "GUEST failed $*"; }
# Waits until a command succeeds, for a minute at most.
until_it_is() { tries=0; until "$@"; do tries=$((tries + 1)); [ $tries -lt 600 ] || return 1; sleep 0.1; done; }
held() { [ "$(cat /sys/module/daqmeter_copy/refcnt)" -ge 1 ]; }
# As many channels have been tested by the kernel's own test: it reports a moment after it is done.
summaries() { [ "$(dmesg | grep -c 'dmatest.*summary')" -ge "$1" ]; }

# Without the module: one line with the remedy, exit 2.
said=$(/daqmeter copy verify --path module 2>&1); code=$?
case "$code $said" in
2*"load the module"*) ok "no module: $said" ;;
*) failed "no module: $code $said" ;;
esac

# A module of another version is refused by number.
insmod /other-abi/daqmeter_copy.ko region_mb=2
said=$(/daqmeter copy verify --path module 2>&1); code=$?
case "$code $said" in
2*"speaks ABI 3"*) ok "other version: $said" ;;
*) failed "other version: $code $said" ;;
esac
rmmod daqmeter_copy

# No channel: CPU copies work, an engine is refused.
insmod /daqmeter_copy.ko region_mb=4
said=$(/daqmeter copy latency --contexts shared --engine module --sizes 64 --repeat 3 2>&1); code=$?
case "$code $said" in
2*DMA_MEMCPY*) ok "no channel: $said" ;;
*) failed "no channel: $code $said" ;;
esac
said=$(su nobody -s /bin/sh -c '/daqmeter copy verify --path module' 2>&1); code=$?
case "$code $said" in
2*"run as root"*) ok "not root: $said" ;;
*) failed "not root: $code $said" ;;
esac
rmmod daqmeter_copy

# The region beyond memory is refused at load.
if insmod /daqmeter_copy.ko region_mb=100000 2>/dev/null; then failed "a region beyond memory"; else ok "a region beyond memory is refused at load"; fi

# Every policy, completion and direction, every byte; sizes to 8 MiB.
insmod /softdma.ko channels=4
insmod /daqmeter_copy.ko region_mb=64
/daqmeter copy verify --path module --up-to 8MiB --times 1 --json > /tmp/verify
cases=$(grep -c verified /tmp/verify)
if [ "$cases" = 14 ] && ! grep -q -e failed -e waived /tmp/verify; then ok "verify: $cases cases, every byte"; else failed "verify: $(cat /tmp/verify)"; fi
for case in refusals both failing flipping losing late busy owned killed priority; do /kmod_guest $case; done
(ulimit -l 64; /kmod_guest locked-memory)

# Latency and bandwidth run to their end on the module; no time of theirs is looked at.
if /daqmeter copy latency --sizes 1,4KiB,1MiB --repeat 5 --engine module --classic /tmp/classic > /tmp/latency 2>&1 &&
   grep -q "softdma\|module" /tmp/latency && [ "$(ls /tmp/classic/cpu/*.dat | wc -l)" = 8 ]; then ok "latency: $(ls /tmp/classic | tr '\n' ' ')"; else failed "latency: $(tail -3 /tmp/latency)"; fi
if /daqmeter copy bandwidth --sizes 64KiB --repeat 5 --engine module --interrupt > /tmp/bandwidth 2>&1; then ok "bandwidth"; else failed "bandwidth: $(tail -3 /tmp/bandwidth)"; fi

# A campaign keeps its channels from its first point on, whatever other programs ask for meanwhile.
/daqmeter copy latency --contexts exclusive,shared --operations to,from --sizes 1,1KiB,64KiB --repeat 50 --engine module \
    --records /tmp/campaign > /tmp/said 2>&1 & campaign=$!
until_it_is test -s /tmp/campaign
asked=0
while kill -0 $campaign 2> /dev/null; do
    /daqmeter copy latency --contexts shared --sizes 1 --repeat 3 --engine module > /dev/null 2>&1
    asked=$((asked + 1))
done
wait $campaign; code=$?
if [ "$code $(wc -l < /tmp/campaign)" = "0 12" ]; then ok "12 points of a campaign, while other programs asked $asked times"; else failed "a campaign beside others: $code: $(tail -2 /tmp/said)"; fi

# Unloading while a program holds the device is refused; the program goes on.
/kmod_guest hold & holder=$!
until_it_is held
if rmmod daqmeter_copy 2>/dev/null; then failed "unload while open"; else ok "unload while open is refused"; fi
kill $holder; wait $holder 2>/dev/null
rmmod daqmeter_copy && rmmod softdma && ok "unloaded" || failed "unload"

# The kernel takes channels for its own copies when a module that uses them is loaded.
insmod /async_tx.ko; insmod /softdma.ko channels=4
/kmod_guest private
rmmod softdma; rmmod async_tx

# Engines that behave otherwise.
insmod /softdma.ko channels=2 unordered=1; insmod /daqmeter_copy.ko region_mb=8
/kmod_guest unordered
rmmod daqmeter_copy; rmmod softdma
insmod /softdma.ko channels=2 pool=4; insmod /daqmeter_copy.ko region_mb=8
/kmod_guest small-pool
rmmod daqmeter_copy; rmmod softdma
insmod /softdma.ko channels=2 terminating=0; insmod /daqmeter_copy.ko region_mb=8
/kmod_guest stuck
rmmod daqmeter_copy; rmmod softdma
insmod /softdma.ko channels=3 pausing=1; insmod /daqmeter_copy.ko region_mb=8
/kmod_guest priority
rmmod daqmeter_copy; rmmod softdma

# The tracer.
insmod /daqmeter_trace.ko
/kmod_guest trace
(while :; do cat /proc/stat > /dev/null; done) & busy=$!
said=$(/daqmeter copy trace --time 1s 2>&1); code=$?
kill $busy
case "$code $said" in
0*copy_to_user*) ok "copy trace: $(echo "$said" | head -1)" ;;
*) failed "copy trace: $code $said" ;;
esac
rmmod daqmeter_trace
# A tracer that counts each copy from the user twice, once more in the helper, must be found out.
insmod /twice/daqmeter_trace.ko
said=$(/kmod_guest trace); code=$?
case "$code $said" in
1*"__copy_from_user, too"*) ok "a tracer that counts twice is found out" ;;
*) failed "a tracer that counts twice: $code $said" ;;
esac
rmmod daqmeter_trace
insmod /daqmeter_trace.ko ring_records=64
/kmod_guest trace-full
rmmod daqmeter_trace

# The kernel's own test of engines, against softdma: four channels, nothing wrong; then a flipped bit, which it must find.
insmod /softdma.ko channels=4
insmod /dmatest.ko timeout=10000 iterations=100 test_buf_size=16384
echo "" > /sys/module/dmatest/parameters/channel
echo 1 > /sys/module/dmatest/parameters/run
cat /sys/module/dmatest/parameters/wait > /dev/null
until_it_is summaries 4
dmesg | grep "dmatest.*summary" > /tmp/dmatest
if [ "$(grep -c ' 0 failures' /tmp/dmatest)" = 4 ]; then ok "dmatest: $(wc -l < /tmp/dmatest) channels, 100 tests each, 0 failures"; else failed "dmatest: $(dmesg | grep -i dmatest | tail -5)"; fi
rmmod dmatest
dmesg -C 2>/dev/null; dmesg -c > /dev/null
echo 5 > /sys/module/softdma/parameters/flip_every
insmod /dmatest.ko timeout=10000 iterations=20 test_buf_size=16384
echo "" > /sys/module/dmatest/parameters/channel
echo 1 > /sys/module/dmatest/parameters/run
cat /sys/module/dmatest/parameters/wait > /dev/null
until_it_is summaries 4
if dmesg | grep "dmatest.*summary" | grep -vq ' 0 failures'; then ok "dmatest finds a flipped bit"; else failed "dmatest did not find the flipped bit"; fi
rmmod dmatest; rmmod softdma
/kmod_guest clean
