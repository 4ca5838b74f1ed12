//! Programs and sockets that are watched, and whose they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use daqmeter_sys::host::Files;
use daqmeter_sys::netlink::{SocketKind, SocketState};

/// Receivers that are watched; all of this host without a process and a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// A process, and those that it starts.
    pub pid: Option<u32>,
    pub port: Option<LocalPort>,
}

impl Target {
    pub fn is_host(self) -> bool {
        self == Target::default()
    }

    pub(crate) fn has_connections(self) -> bool {
        self.port.map_or(self.pid.is_some(), |port| port.is_tcp)
    }
}

/// A local port, as `udp/5000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPort {
    pub is_tcp: bool,
    pub number: u16,
}

impl FromStr for LocalPort {
    type Err = String;

    fn from_str(text: &str) -> Result<LocalPort, String> {
        let wanted = || format!("`{text}` is no port: write udp/5000 or tcp/5000");
        let (protocol, number) = text.split_once('/').ok_or_else(wanted)?;
        let number: u16 = number.parse().map_err(|_| wanted())?;
        match (protocol, number) {
            (_, 0) => Err(wanted()),
            ("udp", _) => Ok(LocalPort { is_tcp: false, number }),
            ("tcp", _) => Ok(LocalPort { is_tcp: true, number }),
            _ => Err(wanted()),
        }
    }
}

/// Reads the place of a number in datagrams, as `offset=8,bytes=4,big`.
pub fn sequence(text: &str) -> Result<(u16, u8, bool), String> {
    let wrong =
        || format!("`{text}` is no place of a number: write offset=8,bytes=4,big (or little)");
    let (mut offset, mut bytes, mut is_big_endian) = (0, None, None);
    for word in text.split(',') {
        match word.split_once('=') {
            Some(("offset", value)) => offset = value.parse().map_err(|_| wrong())?,
            Some(("bytes", value)) => bytes = value.parse().ok(),
            None if word == "big" || word == "little" => is_big_endian = Some(word == "big"),
            _ => return Err(wrong()),
        }
    }
    match (bytes, is_big_endian) {
        (Some(1), order) => Ok((offset, 1, order.unwrap_or(true))),
        (Some(bytes @ (2 | 4 | 8)), Some(is_big_endian)) => Ok((offset, bytes, is_big_endian)),
        _ => Err(wrong()),
    }
}

impl fmt::Display for LocalPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", if self.is_tcp { "tcp" } else { "udp" }, self.number)
    }
}

/// Process that holds a socket, and the socket's number there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    pub(crate) fd: u64,
    pub(crate) name: String,
}

/// Owners of sockets by inode, of some processes or of all; a process of another user shows none.
pub(crate) fn owners(files: &Files, of: Option<&BTreeSet<u32>>) -> BTreeMap<u32, Owner> {
    let all = || files.names("proc").iter().filter_map(|name| name.parse().ok()).collect();
    let pids: BTreeSet<u32> = of.cloned().unwrap_or_else(all);
    let mut owners = BTreeMap::new();
    for pid in pids {
        let mut name = None;
        let folder = files.root().join(format!("proc/{pid}/fd"));
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let link = std::fs::read_link(entry.path()).ok();
            let inode = link.as_deref().and_then(|link| link.to_str()).and_then(socket_inode);
            let fd = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let (Some(inode), Some(fd)) = (inode, fd) {
                let name = name.get_or_insert_with(|| name_of(files, pid));
                owners.entry(inode).or_insert_with(|| Owner { pid, fd, name: name.clone() });
            }
        }
    }
    owners
}

fn socket_inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

pub(crate) fn name_of(files: &Files, pid: u32) -> String {
    files.text(&format!("proc/{pid}/comm")).unwrap_or_default()
}

/// More than a program starts; bounds what a fork bomb makes us follow.
const MAX_PROCESSES: usize = 4096;

/// A process and those below it.
pub(crate) fn family(files: &Files, pid: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::from([pid]);
    let mut open = vec![pid];
    while let Some(pid) = open.pop() {
        let tasks = files.names(&format!("proc/{pid}/task"));
        let children =
            tasks.iter().filter_map(|task| files.text(&format!("proc/{pid}/task/{task}/children")));
        for child in children.collect::<Vec<_>>().join(" ").split_whitespace() {
            if let Ok(child) = child.parse()
                && found.len() < MAX_PROCESSES
                && found.insert(child)
            {
                open.push(child);
            }
        }
    }
    found
}

/// Name of a socket, as `udp/5000`.
pub(crate) fn name(socket: &SocketState, device: Option<&str>) -> String {
    match socket.kind {
        SocketKind::Udp4 | SocketKind::Udp6 => format!("udp/{}", socket.local.port()),
        SocketKind::Tcp4 | SocketKind::Tcp6 => format!("tcp/{}", socket.local.port()),
        SocketKind::Packet => format!("packet socket of {}", device.unwrap_or("all devices")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_port_has_a_protocol_and_a_number() {
        assert_eq!("udp/5000".parse(), Ok(LocalPort { is_tcp: false, number: 5000 }));
        assert_eq!("tcp/1".parse::<LocalPort>().unwrap().to_string(), "tcp/1");
        for wrong in ["5000", "udp/", "udp/0", "udp/65536", "sctp/5", "udp/5000/1", ""] {
            let error = wrong.parse::<LocalPort>().unwrap_err();
            assert!(error.contains("udp/5000 or tcp/5000"), "{error}");
        }
    }

    #[test]
    fn a_number_has_a_place_a_width_and_an_order() {
        assert_eq!(sequence("offset=8,bytes=4,big"), Ok((8, 4, true)));
        assert_eq!(sequence("bytes=8,little"), Ok((0, 8, false)));
        for wrong in ["", "offset=8", "bytes=3,big", "bytes=4", "offset=-1,bytes=1", "at=3,bytes=1"]
        {
            assert!(sequence(wrong).unwrap_err().contains("offset=8,bytes=4,big"), "{wrong}");
        }
    }

    #[test]
    fn sockets_belong_to_the_processes_that_hold_them() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::below(root.path());
        for (path, text) in [
            ("proc/7/comm", "recorder\n"),
            ("proc/7/task/7/children", "8 9\n"),
            ("proc/8/comm", "rx (x)\n"),
            ("proc/9/task/9/children", "7 10\n"),
        ] {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        for (pid, inode) in [(7, 77), (8, 88)] {
            let folder = root.path().join(format!("proc/{pid}/fd"));
            std::fs::create_dir_all(&folder).unwrap();
            symlink(format!("socket:[{inode}]"), folder.join("3")).unwrap();
            symlink("/dev/null", folder.join("0")).unwrap();
        }
        let found = owners(&files, None);
        assert_eq!(found.len(), 2);
        assert_eq!(found[&88], Owner { pid: 8, fd: 3, name: "rx (x)".into() });
        assert_eq!(family(&files, 7), BTreeSet::from([7, 8, 9, 10]));
        assert_eq!(owners(&files, Some(&BTreeSet::from([7]))).len(), 1);
    }
}
