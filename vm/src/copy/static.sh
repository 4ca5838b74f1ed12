# Runs as root in the guest: every copy above 64 bytes has gone to a channel since boot.
parameters=/sys/module/usercopy_dma/parameters
said=$(dmesg | grep usercopy_dma | head -1)
case "$said" in
*"0 channels"*)
    # An engine that cannot be stopped gets no copy: it could write memory that its caller has got back.
    if grep -q softdma.terminating=0 /proc/cmdline; then echo "GUEST ok ${said#*] } of an engine that cannot be stopped"; else echo "GUEST failed $said"; fi
    exit ;;
*"4 channels"*) echo "GUEST ok ${said#*] }" ;;
*) echo "GUEST failed no channels: $said" ;;
esac
before=$(cat $parameters/copies)
for path in pread pipe unix process-vm engine-thread; do
    if /daqmeter copy verify --path $path --up-to 1MiB --times 2 > /tmp/said 2>&1; then
        echo "GUEST ok integrity of $path: copies by engine $(cat $parameters/copies)"
    else
        echo "GUEST failed integrity of $path: $(tail -2 /tmp/said)"
    fi
done
after=$(cat $parameters/copies)
if [ $((after - before)) -gt 100 ]; then echo "GUEST ok $((after - before)) copies, $(cat $parameters/bytes) bytes by engine, $(cat $parameters/refused) by CPU, $(cat $parameters/failed) failed"; else echo "GUEST failed only $((after - before)) copies by engine"; fi
# Files through the page cache, and back.
dd if=/daqmeter of=/tmp/copy bs=16064 2>/dev/null
if cmp /daqmeter /tmp/copy; then echo "GUEST ok a file of $(wc -c < /daqmeter) bytes survives"; else echo "GUEST failed a file was changed"; fi
# An engine that fails: the CPU copies, and nothing is wrong.
echo 3 > /sys/module/softdma/parameters/fail_every
if /daqmeter copy verify --path unix --up-to 65536 > /tmp/said 2>&1; then echo "GUEST ok a failing engine: $(cat $parameters/failed) failed, nothing wrong"; else echo "GUEST failed a failing engine: $(tail -2 /tmp/said)"; fi
echo 0 > /sys/module/softdma/parameters/fail_every
echo 1000000000 > $parameters/least
before=$(cat $parameters/copies)
cat /daqmeter > /dev/null
[ "$(cat $parameters/copies)" = "$before" ] && echo "GUEST ok above the largest size the CPU copies" || echo "GUEST failed the size is not kept"
