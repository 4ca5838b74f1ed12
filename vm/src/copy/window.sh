# Runs as root in a guest with one CPU, whose clock counts instructions.
insmod /softdma.ko channels=3
insmod /daqmeter_copy.ko region_mb=8
/kmod_guest priority
insmod /daqmeter_trace.ko inline_forms=0
/kmod_guest trace
