//! Network file systems, and the reach of locks on their files.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A file system that other hosts may write, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkMount {
    /// Type as the kernel names it, such as `nfs4`.
    pub kind: String,
    /// True if a lock (flock(2)) keeps out only programs of this host.
    pub has_local_locks: bool,
}

/// Option of every mount that takes files.
const ANY: &[&str] = &["rw"];
/// nfs(5).
const NFS: &[&str] = &["nolock", "local_lock=flock", "local_lock=all"];
/// mount.cifs(8).
const CIFS: &[&str] = &["nobrl"];

/// Types of network file systems, and options with which locks do not leave the host.
const NETWORK: [(&str, &[&str]); 10] = [
    ("nfs", NFS),
    ("nfs4", NFS),
    ("cifs", CIFS),
    ("smb3", CIFS),
    // mount.lustre(8).
    ("lustre", &["localflock"]),
    ("ceph", &[]),
    ("gpfs", &[]),
    ("afs", &[]),
    // Only a file of its client tells that locks are global (tuneUseGlobalFileLocks).
    ("beegfs", ANY),
    // QEMU's server grants every lock (hw/9pfs/9p.c, v9fs_lock).
    ("9p", ANY),
];

/// Returns the network file system that holds an existing file or folder; `None` for a local one.
pub fn network(path: &Path) -> Option<NetworkMount> {
    let device = std::fs::metadata(path).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    network_in(&String::from_utf8_lossy(&mounts), &format!("{major}:{minor}"))
}

/// Finds the mount of a device. A line is `ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS .. - TYPE
/// SOURCE OPTIONS`, with escapes for blanks (man proc_pid_mountinfo).
fn network_in(mountinfo: &str, device: &str) -> Option<NetworkMount> {
    let line = mountinfo.lines().find(|line| line.split(' ').nth(2) == Some(device))?;
    let mut words = line.split_once(" - ")?.1.split(' ');
    let (kind, options) = (words.next()?, words.nth(1)?);
    let (_, local) = NETWORK.iter().find(|(name, _)| *name == kind)?;
    let has_local_locks = options.split(',').any(|option| local.contains(&option));
    Some(NetworkMount { kind: kind.to_owned(), has_local_locks })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
41 22 0:40 / /home rw,relatime shared:2 - nfs4 fs1:/home rw,vers=4.2,hard,proto=tcp,local_lock=none,addr=10.0.0.1
42 22 0:41 / /my\\040data rw - nfs fs1:/my\\040data rw,vers=3,nolock,local_lock=all
43 22 0:42 / /flock rw - nfs fs2:/x rw,vers=3,local_lock=flock
44 22 0:43 / /posix rw - nfs fs2:/y rw,vers=3,local_lock=posix
45 22 0:44 / /work rw,noatime - lustre 10.0.0.2@o2ib:/work rw,flock,lazystatfs
46 22 0:45 / /local rw - lustre 10.0.0.2@o2ib:/local rw,localflock
47 22 0:46 / /bee rw - beegfs beegfs_nodev rw,cfgFile=/etc/beegfs/beegfs-client.conf
48 22 0:47 / /win rw - cifs //win/share rw,vers=3.1.1,nobrl
49 22 0:48 / /sshfs rw - fuse.sshfs host:/ rw,user_id=0
50 22 0:49 / /guest rw - 9p shared rw,trans=virtio
cut off
";

    #[test]
    fn locks_of_a_network_file_system_reach_other_hosts_unless_an_option_says_no() {
        let at = |device: &str| {
            let found = network_in(MOUNTINFO, device);
            found.map(|mount| (mount.kind, mount.has_local_locks))
        };
        for (device, kind, is_local) in [
            ("0:40", "nfs4", false),
            ("0:41", "nfs", true),
            ("0:42", "nfs", true),
            ("0:43", "nfs", false),
            ("0:44", "lustre", false),
            ("0:45", "lustre", true),
            ("0:46", "beegfs", true),
            ("0:47", "cifs", true),
            ("0:49", "9p", true),
        ] {
            assert_eq!(at(device), Some((kind.to_owned(), is_local)), "{device}");
        }
        assert_eq!([at("254:1"), at("0:48"), at("9:9")], [None, None, None]);
    }
}
