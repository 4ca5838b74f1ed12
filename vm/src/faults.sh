# Runs as root in the guest. Each case prints one line that begins with GUEST.
ok() { echo "GUEST ok $*"; }
failed() { echo "GUEST failed $*"; }
until_it_is() { for try in $(seq 300); do "$@" && break; sleep 0.1; done; }
uptime_s() { cut -d' ' -f1 /proc/uptime; }
field() { sed -n "s/.*\"$1\":\"*\([^,\"}]*\).*/\1/p"; }
dmsetup() { /programs/dmsetup --noudevsync "$@"; }
ip() { /programs/ip "$@"; }
tc() { /programs/tc "$@"; }
client() { ip netns exec client /programs/daqmeter "$@"; }
for module in /modules/*; do
    case $module in *null_blk*) insmod $module memory_backed=1 gb=1 ;; *) insmod $module ;; esac
done

# The disk takes 10 MB/s, until each write is delayed: 1 MiB in 0.6 s is a sixth of that.
sectors=$(blockdev --getsz /dev/nullb0)
dmsetup create disk --table "0 $sectors linear /dev/nullb0 0"
/programs/mkfs.ext4 -q /dev/dm-0 && mkdir /mnt && mount -t ext4 /dev/dm-0 /mnt
cat > /tmp/keep.toml << END
title = "a disk that becomes slower"
block = "16KiB"
rate = "10MB/s"
lossless = false
source = { kind = "memory" }
sink = { kind = "file", path = "/mnt/run", keep = true, write = "direct" }
END
/programs/daqmeter path run /tmp/keep.toml --layout pipeline --time 7s --records /tmp/keep.jsonl > /tmp/said 2>&1 & run=$!
until_it_is test -s /mnt/run/intervals.ndjson
first_s=$(field at_s < /mnt/run/intervals.ndjson) begin_s=$(uptime_s)
sleep 2.6
dmsetup reload disk --table "0 $sectors delay /dev/nullb0 0 0 /dev/nullb0 0 600"
dmsetup suspend --nolockfs --noflush disk && dmsetup resume disk
slower_s=$(echo "$first_s $(uptime_s) $begin_s" | awk '{ print $1 + $2 - $3 }')
wait $run
fall=$(sed -n 's/.*"falls":\[{\([^}]*\)}.*/\1/p' /tmp/keep.jsonl)
at_s=$(echo "$fall" | field at_s)
cause=${fall##*\"what\":}
said="a disk that is slower after $slower_s s: after $at_s s, $cause"
near=$(echo "$at_s $slower_s" | awk '{ print ($1 > $2 - 1 && $1 < $2 + 1) }')
case "$near $said" in "1 "*'"slow-device"'*) ok "$said" ;; *) failed "$said; $(tail -n 3 /tmp/said)" ;; esac

# A slave behind a router. Both ends divide their batches, so that the router drops single datagrams.
mkdir /run
for where in client router slave; do ip netns add $where; done
while read where name port net; do
    ip -n $where link add $name type veth peer name $port netns router
    ip -n router addr add 10.9.$net.2/24 dev $port && ip -n router link set $port up
    ip -n $where addr add 10.9.$net.1/24 dev $name && ip -n $where link set $name up gso_max_segs 1
    ip -n $where route add default via 10.9.$net.2
done << END
client here near 1
slave there far 2
END
ip netns exec router sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
ip netns exec slave /programs/daqmeter eb snoop 60368 0x10000-0x4ffff --bind 10.9.2.1 -q &
until_it_is client eb read -b udp4/10.9.2.1 0x10000/4
# From here on all packets are Etherbone.
for where in client router slave; do
    ip -n $where neigh show | while read address dev name lladdr mac state; do
        ip -n $where neigh replace $address lladdr $mac dev $name nud permanent
    done
done

# Gives both ways a new netem, whose counters begin at 0.
netem() {
    for port in near far; do
        tc -n router qdisc del dev $port root 2> /dev/null
        tc -n router qdisc add dev $port root netem "$@"
    done
}
# Prints the packets that were sent and dropped: requests, answers.
packets() { for port in far near; do tc -n router -s qdisc show dev $port; done | sed -n 's/.* \([0-9]*\) pkt (dropped \([0-9]*\),.*/\1 \2/p'; }
# Begins with 6 exchanges that are not counted: probes, and a look at the memory. Lost ones are repeated, which takes a packet more.
perf() {
    cycles=$1; shift; netem "$@"; rm -f /tmp/perf.jsonl
    client eb perf udp4/10.9.2.1 --payload memory --base 0x10000 -m 1 -n 100 -l $((cycles / 100)) --method blocking --timeout 100ms \
        --records /tmp/perf.jsonl > /tmp/said 2>&1
    for name in issued delivered timeout; do eval $name=$(field $name < /tmp/perf.jsonl); done
    for name in stray malformed; do eval $name=$(sed "s/.*\"$name-answers\",\"value\":\([0-9]*\).*/\1/" /tmp/perf.jsonl); done
    set -- $(packets)
    answers=$3 dropped=$(($2 + $4)) repeated=$(($1 + $2 - issued - 6))
    said="netem dropped $dropped of $(($1 + $2)) requests and $(($3 + $4)) answers, sent $answers; $timeout of $issued cycles lost, $repeated lost before, $((stray / 2)) answers stray"
}
for loss in 0.01:8000 1:2000 10:300; do
    perf ${loss#*:} loss ${loss%:*}%
    # An answer that comes late is of a lost cycle, and stray. A stray answer has two values.
    if [ $((dropped - repeated)) = $((timeout - stray / 2)) ]; then ok "${loss%:*} %: $said"; else failed "${loss%:*} %: $said: $(tail -n 3 /tmp/said)"; fi
done
perf 1000 delay 2ms reorder 50% loss 1% duplicate 0.5%
unseen=$((answers - delivered - stray / 2 - malformed - 6))
if [ $unseen -ge 0 ] && [ $unseen -le 2 ] && [ $timeout -le $dropped ]; then ok "doubled, reordered: $said"; else failed "doubled, reordered: $said, $unseen unseen"; fi

netem loss 1%
dd if=/programs/daqmeter of=/tmp/range bs=1000 count=200 2> /dev/null
client eb write -b udp4/10.9.2.1 0x10000 --from /tmp/range --verify
arrived=0; begin_s=$(uptime_s)
for read in 1 2 3 4 5; do client eb read -b udp4/10.9.2.1 0x10000/200000 -o /tmp/back && cmp -s /tmp/range /tmp/back && arrived=$((arrived + 1)); done
said="$arrived of 5 reads of 200 kB from $begin_s to $(uptime_s) s; sent and dropped $(packets | xargs)"
[ $arrived = 5 ] && ok "$said" || failed "$said"
