//! Sums of what was counted at each stage, and what is missing between two of them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use daqmeter_record::units::{plural, show_bytes, whole};
use daqmeter_record::watched::{
    LossEffect, TurnCounts, Unseen, Watched, WatchedInterval, WatchedLoss, WatchedPlace,
    WatchedSocket, WatchedStage,
};
use daqmeter_sys::bpf::{Flow, Sequence, SequenceTap};
use daqmeter_sys::host::Files;
use daqmeter_sys::netlink::{Link, SocketKind, SocketState};
use daqmeter_sys::symbols::KernelSymbols;
use daqmeter_sys::tasks::{OpenTask, Task};
use daqmeter_sys::{SysError, affinity, namespace};

use crate::causes::{Causes, Try};
use crate::counters::{Counts, Gain, Snapshot, Sources, add_gains, gain};
use crate::stages::{
    BACKLOG, BUFFER_FULL, INTO_IP, MERGED_INTO_IP, NO_PORT, OCTETS, Of, PACKETS, READ, REFUSED,
    ROWS, Row,
};
use crate::target::{self, LocalPort, Owner, Target};
use crate::timeline::{FILLING, IDLE, MAX_TRACKS, Timeline};

/// Time between two looks at all counters.
pub const INTERVAL: Duration = Duration::from_millis(400);
/// Time between two counts of the datagrams that were read while a buffer fills.
const READS: Duration = Duration::from_millis(50);
/// Most parts of the time in an answer.
const MAX_INTERVALS: usize = 500;
/// Most closed sockets that are remembered without a loss.
const MAX_CLOSED: usize = 1000;
/// Most connections that are looked at one by one.
const MAX_CONNECTIONS: usize = 64;
/// Of `include/net/tcp_states.h`.
const ESTABLISHED: u8 = 1;

#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error(transparent)]
    Sys(#[from] SysError),
    #[error("there is no process {0}")]
    NoProcess(u32),
}

/// A target that is being watched.
pub struct Watch {
    files: Files,
    target: Target,
    /// Name of the target's process.
    program: String,
    sources: Sources,
    last: Snapshot,
    sums: Counts,
    reasons: BTreeMap<&'static str, u64>,
    sockets: BTreeMap<u64, SocketSum>,
    /// Inodes of the target's sockets that are of no kind that is watched.
    others: BTreeSet<u32>,
    began: Instant,
    /// Time at which the datagrams that were read were counted.
    read_at: Instant,
    timeline: Timeline,
    tap: Option<SequenceTap>,
    flows: Vec<Flow>,
    /// Longest delay of a poll.
    latest: Duration,
    notes: BTreeSet<String>,
    intervals: Vec<WatchedInterval>,
}

/// A socket over the time that it was watched.
struct SocketSum {
    state: SocketState,
    owner: Owner,
    is_of_target: bool,
    /// It was there at the last look at all sockets.
    is_open: bool,
    drops: u64,
    most_filled_bytes: u32,
    looks: u32,
    /// Looks at which a connection offered its peer no window.
    closed: u32,
    causes: Causes,
}

/// A loss that a change may avoid: that of a socket, or of a backlog.
pub(crate) struct Worst {
    pub(crate) place: WatchedPlace,
    pub(crate) cookie: u64,
    pub(crate) owner: Owner,
    /// Its reader, and the reader's CPU.
    pub(crate) reader: Option<(Task, u32)>,
    pub(crate) buffer_bytes: u64,
    pub(crate) enough_bytes: u64,
    pub(crate) tries: &'static [Try],
    pub(crate) confirms: &'static [Try],
}

impl SocketSum {
    fn add(&mut self, state: SocketState) {
        let gained = match gain(self.state.drops.into(), state.drops.into(), true) {
            Gain::By(gained) | Gain::Reset(gained) => gained,
        };
        self.drops += gained;
        self.looks += 1;
        let is_closed = state.tcp.is_some_and(|tcp| tcp.window_bytes == Some(0));
        self.closed += u32::from(is_closed && state.state == ESTABLISHED);
        self.most_filled_bytes = self.most_filled_bytes.max(state.filled_bytes);
        self.state = state;
    }
}

impl Watch {
    /// Begins to count.
    ///
    /// # Errors
    /// The process is not there, or its network namespace cannot be entered; `/proc` or netlink
    /// cannot be read.
    pub fn open(
        files: &Files,
        target: Target,
        sequence: Option<Sequence>,
    ) -> Result<Watch, WatchError> {
        let pid = target.pid;
        if let Some(pid) = pid.filter(|pid| !files.root().join(format!("proc/{pid}")).exists()) {
            return Err(WatchError::NoProcess(pid));
        }
        // The start takes a CPU for 0.2 s, which must not be one of the target's.
        let threads = pid.map(|pid| Task::all(files, pid)).unwrap_or_default().into_iter();
        let cpus = threads.filter_map(|task| Some(OpenTask::of(files, task)?.stat()?.1));
        affinity::keep_off(&cpus.collect());
        let program = pid.map(|pid| target::name_of(files, pid)).unwrap_or_default();
        let tap = sequence.map(|of| namespace::within(pid, || SequenceTap::open(of)).flatten());
        let tap = tap.transpose()?;
        let symbols = KernelSymbols::of_kernel();
        let mut sources = Sources::open(files, &symbols, pid, target.has_connections())?;
        let mut last = sources.snapshot()?;
        let sockets = std::mem::take(&mut last.sockets);
        let mut watch = Watch {
            files: files.clone(),
            target,
            program,
            sources,
            last,
            sums: Counts::new(),
            reasons: BTreeMap::new(),
            sockets: BTreeMap::new(),
            others: BTreeSet::new(),
            began: Instant::now(),
            read_at: Instant::now(),
            timeline: Timeline::new(symbols.range("net_rx_action").unwrap_or(0..0)),
            tap,
            flows: Vec::new(),
            latest: Duration::ZERO,
            notes: BTreeSet::new(),
            intervals: Vec::new(),
        };
        // Drops that a socket has at the beginning are no loss of this time.
        watch.add_sockets(sockets, true);
        watch.look_for_connections(false);
        watch.count()?;
        watch.sockets.values_mut().for_each(|socket| socket.drops = 0);
        watch.follow();
        Ok(watch)
    }

    /// Watches a process from its start on: no socket that was there before is its own.
    pub fn follow_process(&mut self, pid: u32) {
        self.target.pid = Some(pid);
        // A new process has our own name until its program begins.
        let own = target::name_of(&self.files, std::process::id());
        for _ in 0..20 {
            self.program = target::name_of(&self.files, pid);
            if self.program != own {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.sockets.values_mut().for_each(|socket| socket.is_of_target = false);
    }

    /// Name of the target, with the number of its process if there is one.
    pub fn name(&self) -> String {
        let number = self.target.pid.map_or(String::new(), |pid| format!(" ({pid})"));
        self.what() + &number
    }

    /// Name of the target that is the same when its program runs again.
    pub fn what(&self) -> String {
        match (self.target.pid, self.target.port) {
            (None, None) => "this host".to_owned(),
            (Some(_), None) => self.program.clone(),
            (None, Some(port)) => port.to_string(),
            (Some(_), Some(port)) => format!("{port} of {}", self.program),
        }
    }

    /// Polls sockets for a time, and counts until its end.
    ///
    /// # Errors
    /// Netlink or `/proc` cannot be read any more.
    pub fn step(&mut self, time: Duration) -> Result<(), WatchError> {
        let end = Instant::now() + time;
        loop {
            let mut pause = IDLE;
            for cookie in self.timeline.cookies() {
                let socket = self.sockets.get_mut(&cookie);
                let now = socket.and_then(|socket| {
                    let now = self.sources.socket(&socket.state)?;
                    socket.add(now.clone());
                    Some(now)
                });
                if now.is_some_and(|now| self.timeline.poll(&self.files, &now)) {
                    pause = FILLING;
                }
            }
            if self.timeline.is_filling() && self.read_at.elapsed() > READS {
                let reads = self.sources.datagrams_read();
                reads.into_iter().for_each(|reads| self.timeline.count_reads(reads));
                self.read_at = Instant::now();
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let pause = pause.min(left);
            let begin = Instant::now();
            std::thread::sleep(pause);
            self.latest = self.latest.max(begin.elapsed().saturating_sub(pause));
        }
        self.count()?;
        let octets = self.sum(Of::Protocols, OCTETS);
        self.timeline.packet_bytes = octets / self.sum(Of::Protocols, INTO_IP).max(1);
        self.follow();
        self.explain();
        self.end_interval();
        Ok(())
    }

    /// Adds what came since the last interval. Many become half as many of twice the time.
    fn end_interval(&mut self) {
        let (now, began) = (self.so_far(), self.intervals.iter());
        let (came_in, lost) =
            began.fold((0, 0), |(came_in, lost), one| (came_in + one.came_in, lost + one.lost));
        self.intervals.push(WatchedInterval {
            end_ns: now.watch_ns,
            came_in: now.came_in().saturating_sub(came_in),
            lost: now.lost().saturating_sub(lost),
        });
        if self.intervals.len() >= MAX_INTERVALS {
            self.intervals = self.intervals.chunks(2).map(joined).collect();
        }
    }

    /// Follows the sockets of the target that lose most, or are fullest.
    fn follow(&mut self) {
        let mut sockets: Vec<&SocketSum> =
            self.sockets.values().filter(|socket| socket.is_of_target).collect();
        sockets.sort_by_key(|socket| std::cmp::Reverse((socket.drops, socket.most_filled_bytes)));
        let is_all = self.target.is_host();
        for socket in sockets.into_iter().take(MAX_TRACKS) {
            if !is_all || socket.drops > 0 {
                self.timeline.follow(&self.files, &socket.state, &socket.owner);
            }
        }
        self.timeline.look_at_cpus();
    }

    fn explain(&mut self) {
        for (cookie, seen) in self.timeline.evidence() {
            if let Some(socket) = self.sockets.get_mut(&cookie) {
                socket.causes.add(&self.files, &seen);
            }
        }
    }

    /// Ends the watch: what is still open is explained, and all is counted once more.
    ///
    /// # Errors
    /// As [`Watch::step`].
    pub fn end(&mut self) -> Result<(), WatchError> {
        self.timeline.end();
        self.explain();
        self.sources.end_connections();
        self.count()
    }

    /// Counts until now.
    fn count(&mut self) -> Result<(), WatchError> {
        let mut now = self.sources.snapshot()?;
        for (of, number, counter) in add_gains(&self.last.counts, &now.counts, &mut self.sums) {
            let at = self.at(of, number);
            self.notes.insert(format!("{counter} of {at} was reset: counted from then on"));
        }
        let gone = |key: &&(Of, u32, &str)| key.0 == Of::Device && key.2 == PACKETS;
        for (of, number, _) in self.last.counts.keys().filter(gone) {
            if !now.counts.contains_key(&(*of, *number, PACKETS)) {
                let at = self.at(*of, *number);
                self.notes.insert(format!("{at} went away: counted until then"));
            }
        }
        let before = self.last.reasons.iter().flatten();
        let before: BTreeMap<&str, u64> = before.copied().collect();
        for (reason, count) in now.reasons.iter().flatten() {
            let gained = count.saturating_sub(before.get(reason).copied().unwrap_or(0));
            *self.reasons.entry(reason).or_default() += gained;
        }
        let sockets = std::mem::take(&mut now.sockets);
        self.add_sockets(sockets, now.has_connections);
        self.look_for_connections(now.has_connections);
        if let Some(tap) = &mut self.tap {
            self.flows = tap.read()?;
        }
        self.last = now;
        Ok(())
    }

    /// Looks at the known connections of a process, and wants a list if it has a socket that no list
    /// has. For each list the kernel goes through all of its places, and holds a CPU for up to 10 ms.
    fn look_for_connections(&mut self, were_listed: bool) {
        let Some(pid) = self.target.pid else { return };
        if !were_listed {
            let known = self.sockets.values_mut();
            let open =
                known.filter(|one| one.is_of_target && one.is_open && one.state.tcp.is_some());
            for socket in open.take(MAX_CONNECTIONS) {
                match self.sources.socket(&socket.state) {
                    Some(now) => socket.add(now),
                    None => socket.is_open = false,
                }
            }
        }
        let family = target::family(&self.files, pid);
        let own = target::owners(&self.files, Some(&family)).into_keys();
        let known: BTreeSet<u32> = self.sockets.values().map(|one| one.state.inode).collect();
        let strange: Vec<u32> =
            own.filter(|inode| !known.contains(inode) && !self.others.contains(inode)).collect();
        if were_listed {
            self.others.extend(strange);
        } else if !strange.is_empty() {
            self.sources.want_connections();
        }
    }

    fn add_sockets(&mut self, states: Vec<SocketState>, has_connections: bool) {
        let is_new = |state: &SocketState| !self.sockets.contains_key(&state.cookie);
        let owners = if states.iter().any(is_new) {
            let of = self.target.pid.map(|pid| target::family(&self.files, pid));
            target::owners(&self.files, of.as_ref())
        } else {
            BTreeMap::new()
        };
        for socket in self.sockets.values_mut() {
            socket.is_open &= socket.state.tcp.is_some() && !has_connections;
        }
        for state in states {
            let sum = self.sockets.entry(state.cookie).or_insert_with(|| {
                let owner = owners.get(&state.inode);
                SocketSum {
                    is_of_target: (self.target.pid.is_none() || owner.is_some())
                        && self.target.port.is_none_or(|port| is_at(&state, port)),
                    is_open: true,
                    owner: owner.cloned().unwrap_or_default(),
                    drops: state.drops.into(),
                    most_filled_bytes: 0,
                    looks: 0,
                    closed: 0,
                    causes: Causes::default(),
                    state: state.clone(),
                }
            });
            sum.is_open = true;
            sum.add(state);
        }
        if self.sockets.len() > MAX_CLOSED {
            self.sockets.retain(|_, socket| socket.is_open || socket.drops > 0);
        }
    }

    /// Name of a row's device or CPU.
    fn at(&self, of: Of, number: u32) -> String {
        match of {
            Of::Cpu => format!("CPU {number}"),
            Of::Device | Of::Driver | Of::Entry | Of::Exit => {
                match self.sources.devices.get(&number) {
                    Some(link) => link.name.clone(),
                    None => format!("device {number}"),
                }
            }
            Of::Protocols | Of::Difference | Of::Number => String::new(),
        }
    }

    fn sum(&self, of: Of, names: &[&str]) -> u64 {
        let keys =
            self.sums.iter().filter(|((kind, _, name), _)| *kind == of && names.contains(name));
        keys.fold(0, |sum, (_, &count)| sum.saturating_add(count))
    }

    /// Packets that were dropped for these reasons.
    fn reason(&self, reasons: &[&str]) -> Option<u64> {
        self.last.reasons.as_ref()?;
        Some(reasons.iter().filter_map(|&reason| self.reasons.get(reason)).sum())
    }

    /// Devices whose packets come from a card: those of a bridge, a bond or a VLAN are counted at
    /// the device that passes them on to IP, or that they came from.
    fn entries(&self) -> impl Iterator<Item = &Link> {
        let devices = self.sources.devices.values();
        devices.filter(|link| link.master.is_none() && link.below.is_none())
    }

    fn of_entries(&self, name: &'static str) -> u64 {
        let keys = self.entries().map(|link| (Of::Device, link.index, name));
        keys.filter_map(|key| self.sums.get(&key)).sum()
    }

    /// Returns the counts so far.
    pub fn so_far(&self) -> Watched {
        let mut losses = Vec::new();
        for row in ROWS.iter().filter(|row| row.of != Of::Difference) {
            losses.extend(self.counted(row));
        }
        let mut left = self.backlog();
        for loss in losses.iter_mut().filter(|loss| loss.place == WatchedPlace::Backlog) {
            loss.packets = loss.packets.min(left);
            left -= loss.packets;
        }
        // Packets of no port are no business of a program that takes them from the card.
        let takes_all = self.target.pid.is_some_and(|pid| self.has_packet_socket(pid));
        losses
            .retain(|loss| loss.packets > 0 && !(takes_all && loss.effect == LossEffect::Unwanted));
        let (stages, differences) = self.stages(&losses);
        losses.extend(differences);
        losses.extend(self.lost_before(&losses));
        losses.extend(self.socket_losses());
        losses.sort_by_key(|loss| std::cmp::Reverse(loss.packets));
        let sockets = self.sockets.values().filter(|socket| socket.is_of_target);
        let mut sockets: Vec<WatchedSocket> = sockets
            .map(|socket| WatchedSocket {
                name: self.name_of(&socket.state),
                pid: Some(socket.owner.pid).filter(|&pid| pid != 0),
                process: socket.owner.name.clone(),
                buffer_bytes: socket.state.buffer_bytes.into(),
                most_filled_bytes: socket.most_filled_bytes.into(),
                drops: socket.drops,
                has_ring: socket.state.has_ring,
            })
            .collect();
        sockets.sort_by_key(|socket| std::cmp::Reverse((socket.drops, socket.most_filled_bytes)));
        let hidden = self.hidden(&stages);
        let of_sockets = losses.iter().filter(|loss| loss.place == WatchedPlace::Socket);
        let others = self.of_others(of_sockets.map(|loss| loss.packets).sum());
        Watched {
            target: self.name(),
            watch_ns: whole(self.began.elapsed().as_secs_f64() * 1e9),
            stages,
            losses,
            intervals: self.intervals.clone(),
            sockets,
            unseen: self.unseen().into_iter().chain(hidden).collect(),
            notes: self
                .notes
                .iter()
                .cloned()
                .chain(self.closed())
                .chain(others)
                .chain(self.late())
                .collect(),
        }
    }

    /// Packets that full sockets of other programs lost.
    fn of_others(&self, of_target: u64) -> Option<String> {
        let others = self.sum(Of::Protocols, BUFFER_FULL).saturating_sub(of_target);
        // Counters of the namespace are read a moment after those of sockets.
        let is_sure = others > of_target / 50;
        (is_sure && !self.target.is_host()).then(|| {
            let packets = plural(others, "packet");
            format!("sockets of other programs lost {packets}: daqmeter watch alone names them")
        })
    }

    /// Connections whose program reads too slowly: TCP makes the sender wait.
    fn closed(&self) -> impl Iterator<Item = String> {
        let closed =
            self.sockets.values().filter(|socket| socket.is_of_target && socket.closed > 0);
        closed.map(|socket| {
            let (name, owner) = (self.name_of(&socket.state), &socket.owner.name);
            let (closed, looks) = (socket.closed, socket.looks);
            format!("{name} of {owner}: it made its sender wait at {closed} of {looks} looks")
        })
    }

    fn late(&self) -> Option<String> {
        let late_ms = self.latest.as_secs_f64() * 1e3;
        let is_late = self.latest > 2 * IDLE && !self.timeline.cookies().is_empty();
        is_late.then(|| {
            format!(
                "the watch waited up to {late_ms:.0} ms for a CPU: it may miss why a buffer was full"
            )
        })
    }

    /// Packets that did not reach IP, where no reason tells if they were dropped. A few are of
    /// other protocols.
    fn hidden(&self, stages: &[WatchedStage]) -> Option<Unseen> {
        let stage = stages.iter().find(|stage| stage.place == WatchedPlace::TrafficControl)?;
        let packets = u64::try_from(stage.other).ok()?;
        let are_few = packets <= 100 || packets < stage.came_in / 100;
        (self.last.reasons.is_none() && !are_few).then(|| Unseen {
            shows: format!("if {packets} packets that did not reach IP were dropped"),
            why: "as root".to_owned(),
            packets,
        })
    }

    fn unseen(&self) -> Vec<Unseen> {
        let mut unseen = self.sources.unseen.clone();
        if !self.timeline.sees_cpus() {
            unseen.push(Unseen {
                shows: "what had the CPU of a reader".to_owned(),
                why: "as root, with sysctl kernel.kptr_restrict=1 or 0".to_owned(),
                packets: 0,
            });
        }
        let of_target = self.sockets.values().filter(|socket| socket.is_of_target);
        let rings = of_target.filter(|socket| socket.state.has_ring && !self.target.is_host());
        unseen.extend(rings.map(|socket| Unseen {
            shows: format!("packets that the ring of {} dropped", self.owned(socket)),
            why: "the kernel tells its program alone (PACKET_STATISTICS)".to_owned(),
            packets: 0,
        }));
        unseen
    }

    /// Packets that full backlogs dropped. Every namespace sees those of all CPUs and namespaces;
    /// what a device had refused is its own.
    fn backlog(&self) -> u64 {
        let dropped = self.sum(Of::Cpu, &[BACKLOG]).min(self.of_entries(REFUSED));
        match self.reason(&["CPU_BACKLOG"]) {
            Some(counted) if self.sources.knows_namespaces() => dropped.min(counted),
            _ => dropped,
        }
    }

    /// Losses of a row by its own counters, one for each device or CPU.
    fn counted(&self, row: &Row) -> Vec<WatchedLoss> {
        let mut by_place = BTreeMap::<u32, (u64, u64)>::new();
        for (&(of, number, name), &count) in &self.sums {
            if of == row.of {
                let (plus, minus) = by_place.entry(number).or_default();
                *plus += if row.plus.contains(&name) { count } else { 0 };
                *minus += if row.minus.contains(&name) { count } else { 0 };
            }
        }
        let lost = by_place
            .into_iter()
            .map(|(number, (plus, minus))| (self.at(row.of, number), plus.saturating_sub(minus)));
        lost.filter(|(_, packets)| *packets > 0)
            .map(|(at, packets)| self.loss(row, at, packets, row.plus.join(" + ")))
            .collect()
    }

    fn loss(&self, row: &Row, at: String, packets: u64, counted_by: String) -> WatchedLoss {
        let reasons = self.reason(row.reasons).filter(|&count| count > 0);
        let reasons = reasons.map(|count| format!("kfree_skb {}: {count}", row.reasons.join(", ")));
        WatchedLoss {
            place: row.place,
            reason: row.reason.to_owned(),
            packets,
            effect: row.effect,
            counted_by: [Some(counted_by), reasons]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join("; "),
            change: row.change.replace("{at}", &at),
            at,
            causes: Vec::new(),
            bursts: 0,
            longest_ns: 0,
            enough_bytes: 0,
            trials: Vec::new(),
        }
    }

    /// Numbers that are missing where packets come in, less the packets that were lost before that
    /// place on this host.
    fn lost_before(&self, losses: &[WatchedLoss]) -> Option<WatchedLoss> {
        const SEEN_BY_TAP: WatchedPlace = WatchedPlace::TrafficControl;
        let missing: u64 =
            self.flows.iter().map(|flow| flow.missing.saturating_sub(flow.late)).sum();
        let here = losses.iter().filter(|loss| loss.place < SEEN_BY_TAP);
        let here: u64 = here.map(|loss| loss.packets).sum();
        let packets = missing.saturating_sub(here);
        let row = ROWS.iter().find(|row| row.place == WatchedPlace::BeforeThisHost)?;
        (packets > 0).then(|| {
            let seen: u64 = self.flows.iter().map(|flow| flow.seen).sum();
            let flows = plural(self.flows.len() as u64, "sender");
            let by = format!("gaps in the numbers of {seen} datagrams of {flows}");
            self.loss(row, String::new(), packets, by)
        })
    }

    /// Counts of each stage, and the losses that only show between two of them.
    fn stages(&self, counted: &[WatchedLoss]) -> (Vec<WatchedStage>, Vec<WatchedLoss>) {
        let lost_at = |place: WatchedPlace| {
            let here = counted.iter().filter(|loss| loss.place == place);
            let lost = here.filter(|loss| loss.effect == LossEffect::Lost);
            lost.map(|loss| loss.packets).sum::<u64>()
        };
        // A virtual pair and the loopback device count a packet when the backlog has taken it, all
        // others before.
        let is_after = |link: &&Link| link.kind.as_deref() == Some("veth") || link.name == "lo";
        let refused = self.entries().filter(is_after).map(|link| (Of::Device, link.index, REFUSED));
        let refused: u64 = refused.filter_map(|key| self.sums.get(&key)).sum();
        let received = self.of_entries(PACKETS) + refused;
        let backlog = self.backlog();
        // TCP's segments may be one packet from their sender on.
        let merged = self.sum(Of::Protocols, MERGED_INTO_IP);
        let into_ip = self.sum(Of::Protocols, INTO_IP);
        let read = self.sum(Of::Protocols, READ);
        let full = self.sum(Of::Protocols, BUFFER_FULL);
        let no_port = self.sum(Of::Protocols, NO_PORT);
        let errors = self.sum(Of::Protocols, &["UdpInErrors", "Udp6InErrors"]);
        let into_udp = read + errors + no_port;

        let card = lost_at(WatchedPlace::Card);
        let xdp = lost_at(WatchedPlace::Driver);
        let entry = lost_at(WatchedPlace::TrafficControl);
        let before_ip = received.saturating_sub(xdp + backlog + entry);
        let is_virtual = self.entries().all(|link| is_after(&link));
        let into_ip = if is_virtual || into_ip > before_ip { merged } else { into_ip };
        // Packets may be between two counters when they are read: one for each CPU.
        let in_flight = self.sums.keys().filter(|key| key.0 == Of::Cpu).count() as u64;
        let mut between = before_ip.saturating_sub(into_ip);
        let mut differences = Vec::new();
        let mut add = |row: &Row, packets: u64| {
            if packets > 0 {
                let by = format!("the difference of two counters ({})", row.reasons.join(", "));
                differences.push(self.loss(row, String::new(), packets, by));
            }
            packets
        };
        let rows = |place| ROWS.iter().find(|row| row.of == Of::Difference && row.place == place);
        let ip = rows(WatchedPlace::Ip).map_or(0, |row| {
            let missing = self
                .sum(Of::Protocols, row.plus)
                .saturating_sub(self.sum(Of::Protocols, row.minus));
            add(row, self.confirmed(missing, self.reason(row.reasons), in_flight))
        });
        let mut confirmed_between = |place, others: u64| {
            rows(place).map_or(0, |row| {
                let reasons = match self.sources.knows_namespaces() {
                    true => self.reason(row.reasons).unwrap_or(0).saturating_sub(others),
                    // Packets of other protocols are missing here, too.
                    false => 0,
                };
                let lost = add(row, self.confirmed(between, Some(reasons), in_flight));
                between = between.saturating_sub(lost);
                lost
            })
        };
        let generic = confirmed_between(WatchedPlace::Driver, 0);
        let firewall = confirmed_between(WatchedPlace::TrafficControl, ip);
        let at_ip = lost_at(WatchedPlace::Ip) + ip;

        let mut came_in = received + card;
        let mut stages = Vec::new();
        let rows = [
            (WatchedPlace::Card, card, received),
            (WatchedPlace::Driver, xdp + generic, received.saturating_sub(xdp + generic)),
            (WatchedPlace::Backlog, backlog, received.saturating_sub(xdp + generic + backlog)),
            (WatchedPlace::TrafficControl, entry + firewall, into_ip),
            (WatchedPlace::Ip, at_ip, into_udp),
            (WatchedPlace::Transport, errors.saturating_sub(full), read + full),
            (WatchedPlace::Socket, full, read),
        ];
        for (place, lost, went_on) in rows {
            let other = i128::from(came_in) - i128::from(lost) - i128::from(went_on);
            let other = i64::try_from(other).unwrap_or(i64::MAX);
            stages.push(WatchedStage { place, came_in, went_on, lost, other });
            came_in = went_on;
        }
        (stages, differences)
    }

    /// Holds the packets that a program says it received against those that it read.
    pub fn hold_against(&self, said: Option<u64>, watched: &mut Watched) {
        let read = self.sum(Of::Protocols, READ);
        // A greeting for each may not count.
        let sockets = self.sockets.values().filter(|socket| socket.is_of_target).count() as u64;
        let Some(said) = said else {
            watched.notes.push("the command's output has no number that --says matches".to_owned());
            return;
        };
        watched.notes.push(match said.cmp(&read) {
            Ordering::Equal => format!("the program says {said}, which is what it read"),
            Ordering::Less if read - said <= sockets => format!(
                "the program says {said}, and read {read}: it may not count its first packets"
            ),
            Ordering::Less => format!("the program says {said}, but it read {read}"),
            Ordering::Greater => {
                format!(
                    "the program says {said}, more than the {read} that it read: do not trust it"
                )
            }
        });
        if let Some(row) = ROWS.iter().find(|row| row.place == WatchedPlace::Program)
            && read.saturating_sub(said) > sockets
        {
            let by = "UdpInDatagrams, less the program's own number".to_owned();
            watched.losses.push(self.loss(row, watched.target.clone(), read - said, by));
        }
    }

    /// Packets of a difference that a reason confirms. Where reasons are not known, or count drops
    /// of other namespaces, too, a difference that packets in flight can explain is none.
    fn confirmed(&self, missing: u64, by_reason: Option<u64>, in_flight: u64) -> u64 {
        let is_sure = self.sources.knows_namespaces() || missing > 2 * in_flight;
        if is_sure { missing.min(by_reason.unwrap_or(missing)) } else { 0 }
    }

    /// Losses at the sockets of the target.
    fn socket_losses(&self) -> Vec<WatchedLoss> {
        let full = self.sum(Of::Protocols, BUFFER_FULL);
        let is_udp =
            |socket: &&SocketSum| matches!(socket.state.kind, SocketKind::Udp4 | SocketKind::Udp6);
        let known: u64 = self.sockets.values().filter(is_udp).map(|socket| socket.drops).sum();
        // A socket's drops are also those of wrong checksums and of its filter, which have rows of
        // their own.
        let others = known.saturating_sub(full);
        let mut losses = Vec::new();
        let is_tcp = |socket: &SocketSum| socket.state.tcp.is_some();
        let of_target = self.sockets.values().filter(|socket| socket.is_of_target);
        for socket in of_target.filter(|socket| !is_tcp(socket)) {
            let is_packet = socket.state.kind == SocketKind::Packet;
            let drops = match is_packet {
                true => socket.drops,
                false => socket.drops.saturating_sub(others),
            };
            let causes = &socket.causes;
            let buffer = u64::from(socket.state.buffer_bytes);
            let enough = causes.enough(buffer);
            losses.push(WatchedLoss {
                place: WatchedPlace::Socket,
                at: self.owned(socket),
                reason: format!("its buffer of {} was full", show_bytes(buffer)),
                packets: drops,
                effect: if causes.is_unread() && self.has_packet_socket(socket.owner.pid) {
                    LossEffect::Unwanted
                } else {
                    LossEffect::Lost
                },
                counted_by: if is_packet {
                    "the socket's drops"
                } else {
                    "the socket's drops, UdpRcvbufErrors"
                }
                .to_owned(),
                change: larger_buffer(enough),
                causes: causes.sorted(),
                bursts: causes.bursts,
                longest_ns: causes.longest_ns,
                enough_bytes: enough,
                trials: Vec::new(),
            });
        }
        let closed = full.saturating_sub(known);
        // A socket may drop after the last look at it; that of another program may, too.
        let is_ours = self.sockets.values().any(|socket| {
            let was_filled = socket.most_filled_bytes > socket.state.buffer_bytes / 4;
            socket.is_of_target && !socket.is_open && (was_filled || socket.drops > 0)
        });
        if closed > 0 && (self.target.is_host() || is_ours) {
            losses.push(WatchedLoss {
                place: WatchedPlace::Socket,
                at: "sockets that were closed".to_owned(),
                reason: "their buffers were full".to_owned(),
                packets: closed,
                effect: LossEffect::Lost,
                counted_by: "UdpRcvbufErrors, less the drops of open sockets".to_owned(),
                change: "a larger buffer (SO_RCVBUF); daqmeter watch -- COMMAND sees all of a \
                         program's time"
                    .to_owned(),
                causes: Vec::new(),
                bursts: 0,
                longest_ns: 0,
                enough_bytes: 0,
                trials: Vec::new(),
            });
        }
        losses.retain(|loss| loss.packets > 0);
        losses
    }

    /// Name of a socket with its process.
    fn owned(&self, socket: &SocketSum) -> String {
        let name = self.name_of(&socket.state);
        match socket.owner.pid {
            0 => format!("{name} of a process that this user may not see"),
            pid => format!("{name} of {} ({pid})", socket.owner.name),
        }
    }

    fn has_packet_socket(&self, pid: u32) -> bool {
        let mut packet = self.sockets.values().filter(|one| one.state.kind == SocketKind::Packet);
        packet.any(|one| one.owner.pid == pid)
    }

    /// The largest loss that a change may avoid: at the backlog of a CPU, or at the socket of the
    /// target that lost most, if it is known why.
    pub(crate) fn worst(&self) -> Option<Worst> {
        let socket = self.worst_socket();
        let lost = socket.as_ref().map_or(0, |worst| self.came_and_lost(worst).lost);
        let backlog = Worst {
            place: WatchedPlace::Backlog,
            cookie: 0,
            owner: Owner::default(),
            reader: None,
            buffer_bytes: 0,
            enough_bytes: 0,
            tries: &[Try::LongerBacklog],
            confirms: &[],
        };
        if self.backlog() > lost { Some(backlog) } else { socket }
    }

    fn worst_socket(&self) -> Option<Worst> {
        let is_known = |socket: &&SocketSum| {
            socket.is_of_target && socket.is_open && socket.state.tcp.is_none() && socket.drops > 0
        };
        let socket = self.sockets.values().filter(is_known).max_by_key(|socket| socket.drops)?;
        let [tries, confirms] = socket.causes.trials()?;
        Some(Worst {
            place: WatchedPlace::Socket,
            cookie: socket.state.cookie,
            owner: socket.owner.clone(),
            reader: self.timeline.reader(&socket.owner),
            buffer_bytes: socket.state.buffer_bytes.into(),
            enough_bytes: socket.causes.enough(socket.state.buffer_bytes.into()),
            tries,
            confirms,
        })
    }

    /// Packets that came to this place in the namespace so far, and those that it lost.
    pub(crate) fn came_and_lost(&self, worst: &Worst) -> TurnCounts {
        match worst.place {
            WatchedPlace::Socket => TurnCounts {
                packets: self.sum(Of::Protocols, READ) + self.sum(Of::Protocols, BUFFER_FULL),
                lost: self.sockets.get(&worst.cookie).map_or(0, |socket| socket.drops),
            },
            _ => TurnCounts {
                packets: self.of_entries(PACKETS).max(self.backlog()),
                lost: self.backlog(),
            },
        }
    }

    /// Intervals in which something was lost.
    pub(crate) fn losing(&self) -> usize {
        self.intervals.iter().filter(|one| one.lost > 0).count()
    }

    /// Names of the devices at which packets come to the namespace.
    pub(crate) fn entry_names(&self) -> Vec<String> {
        self.entries().map(|link| link.name.clone()).collect()
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    fn name_of(&self, state: &SocketState) -> String {
        let device = self.sources.devices.get(&state.device).map(|link| link.name.as_str());
        target::name(state, device)
    }
}

/// Joins intervals that follow each other.
fn joined(intervals: &[WatchedInterval]) -> WatchedInterval {
    WatchedInterval {
        end_ns: intervals.last().map_or(0, |last| last.end_ns),
        came_in: intervals.iter().map(|one| one.came_in).sum(),
        lost: intervals.iter().map(|one| one.lost).sum(),
    }
}

fn is_at(state: &SocketState, port: LocalPort) -> bool {
    let is_tcp = matches!(state.kind, SocketKind::Tcp4 | SocketKind::Tcp6);
    state.kind != SocketKind::Packet && is_tcp == port.is_tcp && state.local.port() == port.number
}

/// A buffer has half of what `SO_RCVBUF` takes for packets: the kernel doubles it (socket(7)).
fn larger_buffer(enough_bytes: u64) -> String {
    match enough_bytes / 2 {
        0 => String::new(),
        set => format!("SO_RCVBUF of {set} in the program, sysctl net.core.rmem_max={set}"),
    }
}
