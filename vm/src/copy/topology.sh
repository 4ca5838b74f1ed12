# Runs as root in a machine of two nodes of two cores of two threads: CPUs 2n and 2n + 1 are one core. The kernel's option
# daqmeter.slower has the CPUs of slow cores.
ip link set lo up
cat > /tmp/threads.toml <<END
title = 'busy threads'
pin = 'last-first'
[[sweep]]
study = 'threads'
engine = 'memory'
time = '10ms'
workload = { read_bytes = 65536, read_lines = 1, write_lines = 0 }
axes = { lanes = [1, 2, 4, 8] }
END
measured() { name=$1; shift; if /daqmeter "$@" > /tmp/out 2>&1; then echo "GUEST ok $name"; else echo "GUEST failed $name: $(tail -n 3 /tmp/out)"; fi; }
measured survey survey --time 5s -o /tmp/report.html --records /tmp/survey.jsonl
measured threads run /tmp/threads.toml --records /tmp/threads.jsonl
echo "RECORD $(head -n 1 /tmp/survey.jsonl)"

# No two threads of a point share a core, and none is on a slow one, while a better one is free.
slower=$(sed -n 's/.*daqmeter.slower=\([0-9,]*\).*/\1/p' /proc/cmdline)
cat /tmp/threads.jsonl /tmp/survey.jsonl | grep -n -o '"requested_cpu":[0-9]*' | awk -F: -v slower=",$slower," '
{ threads[$1]++; cpus[$1] = cpus[$1] " " $3; if (!core[$1, int($3 / 2)]++) cores[$1]++; if (index(slower, "," $3 ",")) slow[$1]++ }
END {
    for (point in threads) {
        points++
        if (cores[point] < (threads[point] < 4 ? threads[point] : 4)) print "GUEST failed threads share a core:" cpus[point]
        if (threads[point] <= 2 && slow[point]) print "GUEST failed a faster core was free:" cpus[point]
    }
    print "GUEST " (points ? "ok" : "failed") " placement of the threads of " points + 0 " points"
}'
