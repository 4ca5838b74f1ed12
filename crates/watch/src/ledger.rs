//! Sums of what was counted at each stage, and what is missing between two of them.

mod sockets;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use daqmeter_record::units::{plural, whole};
use daqmeter_record::watched::{
    LossEffect, Unseen, Watched, WatchedInterval, WatchedLoss, WatchedPlace, WatchedSocket,
    WatchedStage,
};
use daqmeter_sys::bpf::{Flow, Sequence, SequenceTap};
use daqmeter_sys::host::Files;
use daqmeter_sys::netlink::Link;
use daqmeter_sys::symbols::KernelSymbols;
use daqmeter_sys::tasks::{OpenTask, Task};
use daqmeter_sys::{SysError, affinity, namespace};

use self::sockets::SocketSum;
pub(crate) use self::sockets::Worst;
use crate::counters::{Counts, Snapshot, Sources, add_gains};
use crate::stages::{
    BACKLOG, BUFFER_FULL, INTO_IP, MERGED_INTO_IP, NO_PORT, OCTETS, Of, PACKETS, READ, REFUSED,
    ROWS, Row,
};
use crate::target::{self, Target};
use crate::timeline::{FILLING, IDLE, MAX_TRACKS, Timeline};

/// Time between two looks at all counters.
pub const INTERVAL: Duration = Duration::from_millis(400);
/// Time between two counts of the datagrams that were read while a buffer fills.
const READS: Duration = Duration::from_millis(50);
/// Most parts of the time in an answer.
const MAX_INTERVALS: usize = 500;

#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error(transparent)]
    Sys(#[from] SysError),
    #[error("there is no process {0}")]
    NoProcess(u32),
}

/// Packets that a program says it received and lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub received: Option<u64>,
    pub lost: Option<u64>,
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
        // The start takes a CPU for 0.2 s, which must not be one of the target's. A command that we
        // start later has our CPUs.
        let other = pid.filter(|&pid| pid != std::process::id());
        let threads = other.map(|pid| Task::all(files, pid)).unwrap_or_default().into_iter();
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
        if other.is_some() {
            watch.follow();
        }
        Ok(watch)
    }

    /// Watches a process of this program from its start on: no socket that was there before is its
    /// own.
    pub fn follow_process(&mut self, pid: u32, command: &str) {
        self.target.pid = Some(pid);
        let name = Path::new(command).file_name().unwrap_or_default();
        self.program = name.to_string_lossy().into_owned();
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
                has_ring: socket.unseen_of_ring().is_some(),
            })
            .collect();
        sockets.sort_by_key(|socket| std::cmp::Reverse((socket.drops, socket.most_filled_bytes)));
        let hidden = self.hidden(&stages);
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
                .chain(self.of_others())
                .chain(self.late())
                .collect(),
        }
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
        let of_target = of_target.filter(|_| !self.target.is_host());
        unseen.extend(of_target.filter_map(|socket| {
            let [when, why] = socket.unseen_of_ring()?;
            let shows = format!("packets that the ring of {} dropped{when}", self.owned(socket));
            Some(Unseen { shows, why: why.to_owned(), packets: 0 })
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

    /// Holds the packets that a program says it received and lost against those that it read, and
    /// those that were lost on the way to it.
    pub fn hold_against(&self, said: Said, watched: &mut Watched) {
        if said == Said::default() {
            watched.notes.push("the command's output has no number that --says matches".to_owned());
        }
        let lost = watched.lost();
        watched.notes.extend(said.lost.map(|said| match said.cmp(&lost) {
            Ordering::Equal => format!("the program says it lost {said}, as this watch counts"),
            Ordering::Less => format!(
                "the program says it lost {said} of {lost}: it may not see those after its last \
                 packet"
            ),
            Ordering::Greater => {
                let more = said - lost;
                format!(
                    "the program says it lost {said}, {more} of them before this host or in itself"
                )
            }
        }));
        let Some(said) = said.received else { return };
        let read = self.sum(Of::Protocols, READ);
        // A greeting for each may not count.
        let sockets = self.sockets.values().filter(|socket| socket.is_of_target).count() as u64;
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
}

/// Joins intervals that follow each other.
fn joined(intervals: &[WatchedInterval]) -> WatchedInterval {
    WatchedInterval {
        end_ns: intervals.last().map_or(0, |last| last.end_ns),
        came_in: intervals.iter().map(|one| one.came_in).sum(),
        lost: intervals.iter().map(|one| one.lost).sum(),
    }
}
