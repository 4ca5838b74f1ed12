# Runs as root in an empty folder, with the hosts dqm-head and dqm-n1 to dqm-n4 as network namespaces.
# They share the file system but for /tmp. Each has its name, and an address: 10.79.0.1 to 10.79.0.5.
here=$PWD nodes="dqm-n1 dqm-n2 dqm-n3 dqm-n4"
# Paths of sockets are short.
tmp=$(mktemp -d /var/tmp/dqm.XXXX)
stop() {
    code=$?
    for host in dqm-head $nodes; do ip netns pids $host | xargs -r kill -9; done
    test $code = 0 || tail -n 20 $tmp/*.log
    rm -rf $tmp
    exit $code
}
trap stop EXIT
mkdir $tmp/bin $tmp/state && ln -s $DAQMETER $tmp/bin/daqmeter
export PATH=$tmp/bin:/usr/sbin:/sbin:$PATH SLURM_CONF=$tmp/slurm.conf CLUSTERSHELL_CFGDIR=$tmp
on() { host=$1; shift; ip netns exec $host unshare -um sh -c 'hostname $0; mount -t tmpfs tmp /tmp; exec "$@"' $host "$@"; }
until_it_is() { for try in $(seq 100); do "$@" > /dev/null 2>&1 && return; sleep 0.1; done; echo "not within 10 s: $*"; return 1; }
address() { echo 10.79.0.$((${1#dqm-n} + 1)); }

# Makes a folder with the file of a launcher, for a short run.
begin() { mkdir $here/$1; cd $here/$1; daqmeter hosts --print $1 -- run quick --time 2s --at +100ms --records farm/ > file; }
# Runs a launcher. A file of ours may end with `daqmeter hosts`, which returns 1 or 3 for hosts that differ.
start() {
    code=0; on dqm-head "$@" > said 2>&1 || code=$?
    case $code in 0|1|3) ;; *) cat said slurm-*.out; echo "$1: $code"; exit 1 ;; esac
}
# Checks the four files, that the hosts in their records are those of their names, and that all were started by a time.
end() {
    test "$(cd farm && echo *)" = "dqm-n1.jsonl dqm-n2.jsonl dqm-n3.jsonl dqm-n4.jsonl" || { ls -R; cat said; exit 1; }
    for node in $nodes; do
        names=$(grep -o '"host":{"name":"[^"]*"' farm/$node.jsonl | sort -u)
        ! grep -v '"start":{"asked_utc":' farm/$node.jsonl || exit 1
        test "$names" = "\"host\":{\"name\":\"$node\"" || { echo "$node: $names"; exit 1; }
    done
    code=0; daqmeter hosts farm/ > answer 2>&1 || code=$?
    case $code in 0|1|3) ;; *) cat answer; echo "daqmeter hosts: $code"; exit 1 ;; esac
    echo "started by $1: records of 4 hosts, $(cat farm/* | wc -l) in all"
}

cat > $tmp/slurm.conf << END
ClusterName=dqm
SlurmctldHost=dqm-head(10.79.0.1)
SlurmUser=root
AuthInfo=socket=$tmp/munge
ProctrackType=proctrack/linuxproc
SelectType=select/linear
StateSaveLocation=$tmp/state
SlurmctldPidFile=$tmp/slurmctld.pid
SlurmctldLogFile=$tmp/slurmctld.log
SlurmdSpoolDir=$tmp/%n
SlurmdPidFile=$tmp/%n.pid
SlurmdLogFile=$tmp/%n.log
MailProg=/bin/true
$(for node in $nodes; do echo "NodeName=$node NodeAddr=$(address $node)"; done)
PartitionName=all Nodes=ALL Default=YES
END
echo CgroupPlugin=cgroup/v1 > $tmp/cgroup.conf
(umask 077; head -c 1024 /dev/urandom > $tmp/key; ssh-keygen -q -t ed25519 -N '' -f $tmp/ssh)
on dqm-head munged --foreground --force --socket $tmp/munge --key-file $tmp/key --pid-file $tmp/munge.pid --seed-file $tmp/seed \
    --log-file $tmp/munge.log 2> /dev/null &
on dqm-head slurmctld -D -i 2> /dev/null &
for node in $nodes; do on $node slurmd -D -N $node 2> /dev/null & done

cat > $tmp/sshd_config << END
HostKey $tmp/ssh
AuthorizedKeysFile $tmp/ssh.pub
StrictModes no
UsePAM no
PidFile none
SetEnv PATH=$PATH
Subsystem sftp internal-sftp
END
mkdir -p /run/sshd
for node in $nodes; do on $node $(command -v sshd) -D -E $tmp/sshd.log -f $tmp/sshd_config & done
{
    printf '%s\n' "IdentityFile $tmp/ssh" "StrictHostKeyChecking no" "UserKnownHostsFile /dev/null" "LogLevel ERROR"
    for node in $nodes; do printf '%s\n' "Host $node" "HostName $(address $node)"; done
} > $tmp/ssh_config
printf '%s\n' "[Main]" "ssh_options: -F $tmp/ssh_config" "scp_options: -F $tmp/ssh_config" > $tmp/clush.conf
printf '%s\n' $nodes > $tmp/inventory
export ANSIBLE_PIPELINING=1 ANSIBLE_SSH_ARGS="-F $tmp/ssh_config" ANSIBLE_HOME=$tmp/ansible ANSIBLE_REMOTE_TMP=$tmp/ansible ANSIBLE_PYTHON_INTERPRETER=/usr/bin/python3

begin slurm
until_it_is sh -c 'test $(ip netns exec dqm-head sinfo -h -t idle -o %D) = 4'
start timeout 40 sbatch --wait --nodes=4 file
end slurm

begin clush
for node in $nodes; do until_it_is ip netns exec dqm-head ssh -F $tmp/ssh_config $node true; done
export HOSTS='dqm-n[1-4]'
start sh file
end clush

begin ansible
on dqm-head ansible-playbook -i $tmp/inventory --forks 4 file > said 2>&1 || { cat said; exit 1; }
end ansible
