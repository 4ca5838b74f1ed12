# Runs as root in the guest. What `daqmeter watch` says of somebody else's program, against dropwatch.
ok() { echo "GUEST ok $*"; }
failed() { echo "GUEST failed $*"; }
until_it_is() { for try in $(seq 300); do "$@" && return; sleep 0.1; done; return 1; }
for module in /modules/*; do insmod $module; done
export PATH=/programs:$PATH
mkdir /run
ip link set lo up
socat -u -b 100 UDP4-RECV:5000,rcvbuf=65536 /dev/null & receiver=$!

# Prints the drops that dropwatch counted in functions of the kernel, whose names match.
dropped() { sed -n -E "s/^([0-9]+) drops at ($1)\+.*/\1/p" /tmp/drops | awk '{ sum += $1 } END { print sum + 0 }'; }
# dropwatch has begun: its output waits in a buffer.
counts() { [ $(cat /sys/module/drop_monitor/refcnt) -gt 0 ]; }
# Sends datagrams to a port while both watch. daqmeter must name the place and the sum.
judge() {
    name=$1 port=$2 functions=$3 place=$4 code=$5 least=$6
    { echo start; sleep 60; } | dropwatch -l kas > /tmp/drops 2>&1 &
    until_it_is counts
    daqmeter watch --time 6s --json > /tmp/watched & watch=$!
    sleep 2
    dd if=/dev/zero bs=100 count=2000 2> /dev/null | socat -u -b 100 STDIN UDP4-SENDTO:127.0.0.1:$port
    wait $watch; ended=$?
    # It prints what it counted once in a second.
    sleep 1.2; killall -INT dropwatch; sleep 0.2; killall dropwatch
    truth=$(dropped "$functions")
    found=$(sed 's/"place"/\n&/g' /tmp/watched | sed -n "s/^\"place\":\"$place\",.*\"packets\":\([0-9]*\),\"effect.*/\1/p" | awk '{ sum += $1 } END { print sum + 0 }')
    said="$name: dropwatch counted $truth, daqmeter $found at $place, exit code $ended"
    [ "$truth" = "$found" ] && [ $truth -ge $least ] && [ $ended = $code ] && ok "$said" || failed "$said; $(cat /tmp/drops /tmp/watched)"
}
at_socket='[a-z_]*udp_queue_rcv[a-z_0-9]*'
judge "a quiet program" 5000 "$at_socket" socket 0 0
kill -STOP $receiver
judge "a stopped program" 5000 "$at_socket" socket 1 1
kill -CONT $receiver
judge "no program" 5001 __udp4_lib_rcv transport 0 2000
nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }'
nft 'add rule inet t c udp dport 5000 numgen random mod 10 < 1 drop'
# It has no names of functions in modules.
judge "a firewall" 5000 ".*" ip 1 1
