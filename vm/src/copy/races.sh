# Runs as root in a guest whose CPUs run at the same time, each in a thread of the host. All but the first are started now: while the
# kernel boots, it patches its own code.
insmod /daqmeter_trace.ko
/kmod_guest trace-memory
for cpu in /sys/devices/system/cpu/cpu[1-9]*; do echo 1 > $cpu/online; done
if [ "$(nproc)" = 4 ]; then echo "GUEST ok 4 CPUs"; else echo "GUEST failed $(nproc) CPUs"; fi
/kmod_guest trace-memory
/kmod_guest trace
rmmod daqmeter_trace
insmod /softdma.ko channels=4
insmod /daqmeter_copy.ko region_mb=16
for case in racing both losing busy; do /kmod_guest $case; done
rmmod daqmeter_copy; rmmod softdma
insmod /softdma.ko channels=3 unordered=1
insmod /daqmeter_copy.ko region_mb=16
/kmod_guest racing
rmmod daqmeter_copy; rmmod softdma
/kmod_guest clean
