//! All counters of one network namespace at a moment, and what they gained since another.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use daqmeter_record::watched::Unseen;
use daqmeter_sys::bpf::{DropReasons, RingDrops};
use daqmeter_sys::ethtool::{DriverCounters, Ethtool};
use daqmeter_sys::host::Files;
use daqmeter_sys::netlink::{Family, Link, Netlink, SocketKind, SocketState};
use daqmeter_sys::symbols::KernelSymbols;
use daqmeter_sys::{SysError, namespace};

use crate::stages::{self, BACKLOG, Of, PACKETS, REFUSED, ROWS};
use crate::target::Owner;

/// A counter: the kind of its source, the number of device or CPU there, and its name.
pub(crate) type Key = (Of, u32, &'static str);
pub(crate) type Counts = BTreeMap<Key, u64>;

const DATAGRAMS: [SocketKind; 3] = [SocketKind::Udp4, SocketKind::Udp6, SocketKind::Packet];
/// A host may have ten thousands of connections, so those of a program or a port are read only.
/// The kernel goes through a table of up to a million places for them.
const CONNECTIONS: [SocketKind; 2] = [SocketKind::Tcp4, SocketKind::Tcp6];
/// Place of `netstat` among the files of protocols.
const NETSTAT: usize = 1;
/// Lists of connections take at most one part of the time in this many.
const PARTS: u32 = 200;

/// Longest time of a snapshot whose parts belong together: most took 1.5 to 2.5 ms (debug build, VM
/// with 2 busy CPUs). One that waited for a CPU is read again.
const TOGETHER: Duration = Duration::from_millis(50);

/// Open sources of counters. Files of `/proc` stay those of the namespace after its last process.
pub(crate) struct Sources {
    protocols: Vec<File>,
    backlogs: File,
    route: Netlink,
    sockets: Netlink,
    /// `None` where connections are not listed.
    lists: Option<Lists>,
    ethtool: Option<Ethtool>,
    drivers: BTreeMap<u32, Driver>,
    reasons: Option<DropReasons>,
    files: Files,
    /// Reader of the drops of rings, from the first ring on; `None` within where it cannot be had.
    rings: Option<Option<RingDrops>>,
    /// Names that rows use, and those of datagrams that were read.
    names: HashSet<&'static str>,
    reads: HashSet<&'static str>,
    /// Devices by index, as they were seen last.
    pub(crate) devices: BTreeMap<u32, Link>,
    pub(crate) unseen: Vec<Unseen>,
    text: Vec<u8>,
}

/// Counters of a driver, and the places of those that rows use.
struct Driver {
    counters: DriverCounters,
    used: Vec<(&'static str, Vec<usize>)>,
}

/// Lists of connections.
struct Lists {
    /// One is wanted, not before `next`.
    is_wanted: bool,
    next: Instant,
    /// They go on; else each is asked for.
    are_paced: bool,
}

/// Counters and sockets at a moment.
pub(crate) struct Snapshot {
    pub(crate) counts: Counts,
    /// Packets that the kernel dropped in the namespace, by reason.
    pub(crate) reasons: Option<Vec<(&'static str, u64)>>,
    pub(crate) sockets: Vec<SocketState>,
    /// Connections are among them.
    pub(crate) has_connections: bool,
}

impl Sources {
    /// Opens the sources in the network namespace of a process, or in our own.
    pub(crate) fn open(
        files: &Files,
        symbols: &KernelSymbols,
        pid: Option<u32>,
        with_connections: bool,
    ) -> Result<Sources, SysError> {
        let entered = namespace::within(pid, || {
            let sockets = Netlink::open(Family::SocketDiagnosis)?;
            Ok((Netlink::open(Family::Route)?, sockets, Ethtool::open().ok()))
        });
        let (route, sockets, ethtool) = entered.flatten()?;
        let of = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
        let open = |name: &str| {
            let path = format!("proc/{of}/net/{name}");
            File::open(files.root().join(&path))
                .map_err(|source| SysError { call: format!("/{path}"), source })
        };
        let mut unseen = Vec::new();
        let here = namespace::network_of(files, pid.unwrap_or_else(std::process::id));
        let reasons: BTreeSet<&str> = ROWS.iter().flat_map(|row| row.reasons).copied().collect();
        let reasons = DropReasons::open(files, symbols, here.unwrap_or(0), reasons.into_iter());
        let reasons = reasons.map_err(|error| {
            unseen.push(Unseen {
                shows: "the kernel's own reason for each packet that it drops".to_owned(),
                why: format!("as root, on Linux 5.17 or later with tracefs; {error}"),
                packets: 0,
            });
        });
        let used = ROWS.iter().flat_map(|row| row.plus.iter().chain(row.minus));
        let used = used.chain(stages::INTO_IP).chain(stages::OCTETS);
        let used = used.chain(stages::READ).chain(stages::BUFFER_FULL);
        Ok(Sources {
            // A host without IPv6 has no snmp6.
            protocols: [open("snmp"), open("netstat")]
                .into_iter()
                .chain(open("snmp6").ok().map(Ok))
                .collect::<Result<_, _>>()?,
            backlogs: open("softnet_stat")?,
            route,
            sockets,
            lists: with_connections.then(|| {
                // The sockets of a process are known, so that one may be missing in all lists.
                let are_paced = pid.is_none();
                Lists { is_wanted: are_paced, next: Instant::now(), are_paced }
            }),
            ethtool,
            drivers: BTreeMap::new(),
            reasons: reasons.ok(),
            files: files.clone(),
            rings: None,
            names: used.copied().collect(),
            reads: stages::READ.iter().copied().collect(),
            devices: BTreeMap::new(),
            unseen,
            text: Vec::new(),
        })
    }

    /// Reads all counters, and again if that took long: its parts are of different times then.
    pub(crate) fn snapshot(&mut self) -> Result<Snapshot, SysError> {
        let began = Instant::now();
        let snapshot = self.read()?;
        if began.elapsed() <= TOGETHER {
            return Ok(snapshot);
        }
        if let Some(lists) = self.lists.as_mut().filter(|_| snapshot.has_connections) {
            (lists.is_wanted, lists.next) = (true, Instant::now());
        }
        self.read()
    }

    fn read(&mut self) -> Result<Snapshot, SysError> {
        let mut counts = Counts::new();
        self.devices(&mut counts)?;
        for discipline in self.route.disciplines()? {
            let of = if discipline.is_entry { Of::Entry } else { Of::Exit };
            counts.insert((of, discipline.device, "drops"), discipline.drops.into());
        }
        for at in 0..=self.protocols.len() {
            let file = self.protocols.get(at).unwrap_or(&self.backlogs);
            let failed =
                |source| SysError { call: "read the counters of /proc/net".into(), source };
            read_again(file, &mut self.text).map_err(failed)?;
            let text = String::from_utf8_lossy(&self.text);
            match at {
                at if at == self.protocols.len() => backlogs(&text, &mut counts),
                _ => protocols(&text, &self.names, &mut counts),
            }
        }
        // A kernel without the diagnosis of packet sockets has the others.
        let mut of = |kind: &SocketKind| self.sockets.sockets(*kind).unwrap_or_default();
        let mut sockets: Vec<SocketState> = DATAGRAMS.iter().flat_map(&mut of).collect();
        let began = Instant::now();
        let lists = self.lists.as_mut().filter(|lists| lists.is_wanted && lists.next <= began);
        let has_connections = lists.is_some();
        if let Some(lists) = lists {
            sockets.extend(CONNECTIONS.iter().flat_map(of));
            let end = Instant::now();
            (lists.is_wanted, lists.next) = (lists.are_paced, end + (end - began) * PARTS);
        }
        let reasons = self.reasons.as_mut().and_then(|reasons| reasons.read().ok());
        Ok(Snapshot { counts, reasons, sockets, has_connections })
    }

    /// Wants a list of connections, for a socket that is in no list so far.
    pub(crate) fn want_connections(&mut self) {
        self.lists.iter_mut().for_each(|lists| lists.is_wanted = true);
    }

    /// Lists connections at the next snapshot if they are listed all the time.
    pub(crate) fn end_connections(&mut self) {
        let paced = self.lists.iter_mut().filter(|lists| lists.are_paced);
        paced.for_each(|lists| lists.next = Instant::now());
    }

    fn devices(&mut self, counts: &mut Counts) -> Result<(), SysError> {
        for link in self.route.links()? {
            let received = link.received;
            let fields = [
                (PACKETS, received.packets),
                (REFUSED, received.dropped),
                ("rx_missed_errors", received.missed_errors),
                ("rx_fifo_errors", received.fifo_errors),
                ("rx_over_errors", received.over_errors),
                ("rx_crc_errors", received.crc_errors),
                ("rx_frame_errors", received.frame_errors),
                ("rx_length_errors", received.length_errors),
            ];
            counts.extend(fields.map(|(name, count)| ((Of::Device, link.index, name), count)));
            self.driver(&link, counts);
            self.devices.insert(link.index, link);
        }
        Ok(())
    }

    /// Adds a driver's own counters. Its names are read again when the device is another one, or
    /// has other queues.
    fn driver(&mut self, link: &Link, counts: &mut Counts) {
        let Some(ethtool) = &self.ethtool else {
            return;
        };
        let is_same = self.devices.get(&link.index).is_some_and(|one| one.name == link.name);
        if !is_same && let Ok(counters) = ethtool.counters(&link.name) {
            let used = used_counters(&counters.names);
            self.drivers.insert(link.index, Driver { counters, used });
        }
        let Some(driver) = self.drivers.get(&link.index).filter(|one| !one.used.is_empty()) else {
            return;
        };
        let Ok(values) = ethtool.read(&driver.counters) else {
            return;
        };
        for (name, places) in &driver.used {
            let sum = places.iter().filter_map(|&at| values.get(at)).sum();
            counts.insert((Of::Driver, link.index, name), sum);
        }
    }

    /// Datagrams that programs read in the namespace since it began; `None` where it cannot be
    /// read.
    pub(crate) fn datagrams_read(&mut self) -> Option<u64> {
        let mut counts = Counts::new();
        // `netstat`, which is the longest, has no counter of UDP.
        let files = self.protocols.iter().enumerate().filter(|(at, _)| *at != NETSTAT);
        for (_, file) in files {
            read_again(file, &mut self.text).ok()?;
            protocols(&String::from_utf8_lossy(&self.text), &self.reads, &mut counts);
        }
        Some(counts.values().sum())
    }

    /// Reasons count drops of this namespace only.
    pub(crate) fn knows_namespaces(&self) -> bool {
        self.reasons.as_ref().is_some_and(|reasons| reasons.knows_namespaces)
    }

    /// Packets that the ring of a socket dropped since it was opened, or its program last asked.
    pub(crate) fn ring_drops(&mut self, owner: &Owner, cookie: u64) -> Option<u32> {
        let rings = self.rings.get_or_insert_with(|| RingDrops::open(&self.files));
        rings.as_ref()?.of(owner.pid, owner.fd, cookie)
    }

    /// A socket as it is now; `None` when it was closed.
    pub(crate) fn socket(&mut self, of: &SocketState) -> Option<SocketState> {
        self.sockets.socket(of).ok().flatten()
    }
}

/// Datagrams that full sockets of this network namespace dropped since it began.
pub fn datagrams_lost(files: &Files) -> u64 {
    let names = stages::BUFFER_FULL.iter().copied().collect();
    let mut counts = Counts::new();
    for file in ["proc/net/snmp", "proc/net/snmp6"] {
        protocols(&files.text(file).unwrap_or_default(), &names, &mut counts);
    }
    counts.values().sum()
}

/// Places of the counters that rows name. A driver that has a sum of its queues gives that one.
fn used_counters(names: &[String]) -> Vec<(&'static str, Vec<usize>)> {
    let rows = ROWS.iter().filter(|row| row.of == Of::Driver).flat_map(|row| row.plus);
    let places = rows.map(|wanted| {
        let fits = |name: &str| name.contains(wanted) && !name.contains("tx");
        let with = |is_sum: bool| -> Vec<usize> {
            let is_sum_of = |name: &str| !name.contains(|letter: char| letter.is_ascii_digit());
            let named = names.iter().enumerate();
            let found = named.filter(|(_, name)| fits(name) && is_sum_of(name) == is_sum);
            found.map(|(at, _)| at).collect()
        };
        let sums = with(true);
        (*wanted, if sums.is_empty() { with(false) } else { sums })
    });
    places.filter(|(_, places)| !places.is_empty()).collect()
}

/// Reads a file of `/proc` from its beginning.
fn read_again(file: &File, text: &mut Vec<u8>) -> io::Result<()> {
    text.clear();
    let mut part = [0; 16 << 10];
    loop {
        match file.read_at(&mut part, text.len() as u64)? {
            0 => return Ok(()),
            bytes => text.extend(&part[..bytes]),
        }
    }
}

/// Reads `snmp` and `netstat` (a line of names, a line of values), and `snmp6` (a counter a line).
fn protocols(text: &str, wanted: &HashSet<&'static str>, counts: &mut Counts) {
    let mut lines = text.lines();
    let mut name = String::new();
    let mut add = |protocol: &str, counter: &str, value: &str| {
        name.clear();
        name.push_str(protocol);
        name.push_str(counter);
        if let (Some(name), Ok(value)) = (wanted.get(name.as_str()), value.parse()) {
            counts.insert((Of::Protocols, 0, name), value);
        }
    };
    while let Some(line) = lines.next() {
        let Some((protocol, names)) = line.split_once(':') else {
            let mut words = line.split_whitespace();
            if let (Some(counter), Some(value)) = (words.next(), words.next()) {
                add("", counter, value);
            }
            continue;
        };
        let values = lines.next().and_then(|line| line.split_once(':'));
        let Some((_, values)) = values.filter(|(of, _)| *of == protocol) else {
            return;
        };
        for (counter, value) in names.split_whitespace().zip(values.split_whitespace()) {
            add(protocol, counter, value);
        }
    }
}

/// Reads `softnet_stat`: hexadecimal columns, the second counts drops, the thirteenth is the CPU
/// since Linux 5.10 (net/core/net-procfs.c).
fn backlogs(text: &str, counts: &mut Counts) {
    for (line, at) in text.lines().zip(0_u32..) {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let column = |at: usize| line.split_whitespace().nth(at).and_then(hex);
        let cpu = column(12).and_then(|cpu| u32::try_from(cpu).ok()).unwrap_or(at);
        if let Some(drops) = column(1) {
            counts.insert((Of::Cpu, cpu, BACKLOG), drops);
        }
    }
}

/// Gain of a counter between two snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gain {
    By(u64),
    /// It has a smaller value than before: a driver or a user set it to zero.
    Reset(u64),
}

/// Gain of a counter with 32 or 64 bits. One that passed its end has wrapped if it was in its upper
/// half before and is in its lower half now.
pub(crate) fn gain(before: u64, after: u64, is_of_32_bits: bool) -> Gain {
    const HALF: u64 = 1 << 31;
    if after >= before {
        Gain::By(after - before)
    } else if is_of_32_bits && before >= HALF && after < HALF {
        Gain::By(after + (HALF << 1) - before)
    } else {
        Gain::Reset(after)
    }
}

/// Adds what counters gained to sums. Returns those that were reset. A counter that is new begins
/// with its first value.
pub(crate) fn add_gains(before: &Counts, after: &Counts, sums: &mut Counts) -> Vec<Key> {
    let mut resets = Vec::new();
    for (key, &now) in after {
        let is_of_32_bits = matches!(key.0, Of::Entry | Of::Exit | Of::Cpu);
        let gained = match before.get(key).map(|&then| gain(then, now, is_of_32_bits)) {
            Some(Gain::By(gained)) => gained,
            Some(Gain::Reset(gained)) => {
                resets.push(*key);
                gained
            }
            None => 0,
        };
        let sum = sums.entry(*key).or_default();
        *sum = sum.saturating_add(gained);
    }
    resets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Counts {
        let names = ["IpInReceives", "UdpRcvbufErrors", "Udp6NoPorts", "IpExtInNoECTPkts"];
        let mut counts = Counts::new();
        protocols(text, &HashSet::from(names), &mut counts);
        counts
    }

    #[test]
    fn counters_have_the_names_of_nstat() {
        let snmp = "Ip: Forwarding DefaultTTL InReceives\nIp: 1 64 400000\n\
                    Udp: InDatagrams RcvbufErrors\nUdp: 5 172094\n";
        let counts = read(snmp);
        assert_eq!(counts[&(Of::Protocols, 0, "IpInReceives")], 400_000);
        assert_eq!(counts[&(Of::Protocols, 0, "UdpRcvbufErrors")], 172_094);
        assert_eq!(read("IpExt: InNoRoutes InNoECTPkts\nIpExt: 0 7\n").len(), 1);
        let counts = read("Ip6InReceives   \t1\nUdp6NoPorts      \t3\n");
        assert_eq!(counts[&(Of::Protocols, 0, "Udp6NoPorts")], 3);
    }

    #[test]
    fn datagrams_that_were_lost_are_those_of_both_protocols() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::below(root.path());
        assert_eq!(datagrams_lost(&files), 0);
        std::fs::create_dir_all(root.path().join("proc/net")).unwrap();
        let write = |name, text: &str| std::fs::write(root.path().join(name), text).unwrap();
        write("proc/net/snmp", "Udp: InDatagrams RcvbufErrors\nUdp: 5 7\n");
        write("proc/net/snmp6", "Udp6InDatagrams 9\nUdp6RcvbufErrors 4\n");
        assert_eq!(datagrams_lost(&files), 11);
    }

    #[test]
    fn lines_that_do_not_belong_together_are_not_read() {
        assert!(read("Ip: InReceives\nUdp: 7\n").is_empty());
        assert!(read("Ip: InReceives\n").is_empty());
        assert!(read("Ip: InReceives\nIp: -1\n").is_empty());
    }

    #[test]
    fn a_backlog_belongs_to_the_cpu_that_its_line_names() {
        let line =
            |drops: &str, cpu: &str| format!("00000010 {drops} 0 0 0 0 0 0 0 0 0 0 {cpu} 0 0\n");
        let mut counts = Counts::new();
        backlogs(&(line("0000000a", "00000000") + &line("ffffffff", "00000003")), &mut counts);
        assert_eq!(counts[&(Of::Cpu, 0, BACKLOG)], 10);
        assert_eq!(counts[&(Of::Cpu, 3, BACKLOG)], u64::from(u32::MAX));
        let mut counts = Counts::new();
        backlogs("00000010 00000007 00000001\n", &mut counts);
        assert_eq!(counts[&(Of::Cpu, 0, BACKLOG)], 7);
    }

    #[test]
    fn a_counter_wraps_or_is_reset() {
        assert_eq!(gain(5, 9, false), Gain::By(4));
        assert_eq!(gain(u64::from(u32::MAX) - 1, 3, true), Gain::By(5));
        assert_eq!(gain(9, 3, true), Gain::Reset(3));
        assert_eq!(gain(u64::from(u32::MAX) - 1, 3, false), Gain::Reset(3));
    }

    #[test]
    fn a_device_that_comes_later_begins_with_its_first_value() {
        let key = (Of::Device, 3, PACKETS);
        let (old, new) = (Counts::new(), Counts::from([(key, 1_000)]));
        let mut sums = Counts::new();
        assert!(add_gains(&old, &new, &mut sums).is_empty());
        assert_eq!(sums[&key], 0);
        assert_eq!(add_gains(&new, &Counts::from([(key, 10)]), &mut sums), [key]);
        assert_eq!(sums[&key], 10);
    }

    #[test]
    fn a_drivers_sum_is_taken_before_its_queues() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let of = |list: &[&str]| used_counters(&names(list));
        let veth = of(&["peer_ifindex", "rx_queue_0_xdp_drops", "rx_queue_1_xdp_drops"]);
        assert_eq!(veth, [("xdp_drop", vec![1, 2])]);
        let mlx5 = of(&["rx_xdp_drop", "rx0_xdp_drop", "rx1_xdp_drop", "rx_discards_phy"]);
        assert_eq!(mlx5, [("rx_discards_phy", vec![3]), ("xdp_drop", vec![0])]);
    }

    proptest::proptest! {
        #[test]
        fn no_text_of_proc_breaks_the_reader(text in "[A-Za-z0-9: \n]{0,200}") {
            let mut counts = read(&text);
            backlogs(&text, &mut counts);
        }
    }
}
