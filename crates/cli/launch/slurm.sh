#!/bin/sh
# Needs this folder on all hosts. Start: sbatch --nodes=500 FILE
#SBATCH --job-name=daqmeter
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=00:15:00

# Each task has all CPUs and all memory of its host. A host where a point failed ends no other one.
srun --whole --cpu-bind=none --mem=0 --kill-on-bad-exit=0 --label \
    @COMMAND@ || echo "srun ended with $?: a host failed, see above"
daqmeter hosts @FOLDER@
