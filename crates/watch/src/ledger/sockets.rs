//! Sockets of a namespace: what each held and lost, and which belong to the target.

use std::collections::{BTreeMap, BTreeSet};

use daqmeter_record::units::{plural, show_bytes};
use daqmeter_record::watched::{LossEffect, TurnCounts, WatchedLoss, WatchedPlace};
use daqmeter_sys::netlink::{SocketKind, SocketState};
use daqmeter_sys::tasks::Task;

use super::Watch;
use crate::causes::{Causes, Try};
use crate::counters::{Gain, gain};
use crate::stages::{BUFFER_FULL, Of, PACKETS, READ};
use crate::target::{self, LocalPort, Owner};

/// Most closed sockets that are remembered without a loss.
const MAX_CLOSED: usize = 1000;
/// Most connections that are looked at one by one.
const MAX_CONNECTIONS: usize = 64;
/// Of `include/net/tcp_states.h`.
const ESTABLISHED: u8 = 1;

/// A socket over the time that it was watched.
pub(super) struct SocketSum {
    pub(super) state: SocketState,
    pub(super) owner: Owner,
    pub(super) is_of_target: bool,
    /// It was there at the last look at all sockets.
    pub(super) is_open: bool,
    pub(super) drops: u64,
    /// Drops of its ring at the last look.
    ring: Option<u32>,
    /// Its program took the drops of its ring, and some with them that no look had seen.
    was_taken: bool,
    pub(super) most_filled_bytes: u32,
    pub(super) looks: u32,
    /// Looks at which a connection offered its peer no window.
    pub(super) closed: u32,
    pub(super) causes: Causes,
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
    pub(crate) bursts: u64,
    pub(crate) tries: &'static [Try],
    pub(crate) confirms: &'static [Try],
}

impl SocketSum {
    fn add_ring(&mut self, drops: Option<u32>) {
        let Some(now) = drops else { return };
        match gain(self.ring.unwrap_or(0).into(), now.into(), true) {
            Gain::By(gained) => self.drops += gained,
            Gain::Reset(gained) => (self.drops, self.was_taken) = (self.drops + gained, true),
        }
        self.ring = drops;
    }

    /// Why not all drops of its ring are known, if they are not.
    pub(super) fn unseen_of_ring(&self) -> Option<[&'static str; 2]> {
        match (self.state.has_ring, self.ring, self.is_open) {
            (false, ..) | (true, Some(_), true) if !self.was_taken => None,
            (_, None, _) => Some(["", "as root; else the kernel tells its program alone"]),
            (_, _, false) => Some([" in its last 0.4 s", "they were gone with the socket"]),
            _ => Some([" before its program asked for them", "the kernel sets them to zero then"]),
        }
    }

    pub(super) fn add(&mut self, state: SocketState) {
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
    /// Looks at the known connections of a process, and wants a list if it has a socket that no
    /// list has. The kernel goes through all of its places for one, and holds a CPU for up to
    /// 10 ms.
    pub(super) fn look_for_connections(&mut self, were_listed: bool) {
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
        let unknown: Vec<u32> =
            own.filter(|inode| !known.contains(inode) && !self.others.contains(inode)).collect();
        if were_listed {
            self.others.extend(unknown);
        } else if !unknown.is_empty() {
            self.sources.want_connections();
        }
    }

    pub(super) fn add_sockets(&mut self, states: Vec<SocketState>, has_connections: bool) {
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
                    ring: None,
                    was_taken: false,
                    most_filled_bytes: 0,
                    looks: 0,
                    closed: 0,
                    causes: Causes::default(),
                    state: state.clone(),
                }
            });
            sum.is_open = true;
            if state.has_ring {
                sum.add_ring(self.sources.ring_drops(&sum.owner, state.cookie));
            }
            sum.add(state);
        }
        if self.sockets.len() > MAX_CLOSED {
            self.sockets.retain(|_, socket| socket.is_open || socket.drops > 0);
        }
    }

    /// Packets that open sockets of other programs lost.
    pub(super) fn of_others(&self) -> Option<String> {
        let others =
            self.sockets.values().filter(|one| !one.is_of_target && one.state.tcp.is_none());
        let others: u64 = others.map(|socket| socket.drops).sum();
        (others > 0).then(|| {
            let packets = plural(others, "packet");
            format!("sockets of other programs lost {packets}: daqmeter watch alone names them")
        })
    }

    /// Connections whose program reads too slowly: TCP makes the sender wait.
    pub(super) fn closed(&self) -> impl Iterator<Item = String> {
        let closed =
            self.sockets.values().filter(|socket| socket.is_of_target && socket.closed > 0);
        closed.map(|socket| {
            let (name, owner) = (self.name_of(&socket.state), &socket.owner.name);
            let (closed, looks) = (socket.closed, socket.looks);
            format!("{name} of {owner}: it made its sender wait at {closed} of {looks} looks")
        })
    }

    /// Losses at the sockets of the target.
    pub(super) fn socket_losses(&self) -> Vec<WatchedLoss> {
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
            let [reason, counted_by, change] = match (socket.ring.is_some(), is_packet) {
                (true, _) => [
                    "its ring was full".to_owned(),
                    "tp_drops of the socket".to_owned(),
                    "a larger ring (PACKET_RX_RING) or less work for each packet".to_owned(),
                ],
                (_, is_packet) => [
                    format!("its buffer of {} was full", show_bytes(buffer)),
                    format!(
                        "the socket's drops{}",
                        if is_packet { "" } else { ", UdpRcvbufErrors" }
                    ),
                    larger_buffer(enough),
                ],
            };
            losses.push(WatchedLoss {
                place: WatchedPlace::Socket,
                at: self.owned(socket),
                reason,
                packets: drops,
                effect: if causes.is_unread() && self.has_packet_socket(socket.owner.pid) {
                    LossEffect::Unwanted
                } else {
                    LossEffect::Lost
                },
                counted_by,
                change,
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
    pub(super) fn owned(&self, socket: &SocketSum) -> String {
        let name = self.name_of(&socket.state);
        match socket.owner.pid {
            0 => format!("{name} of a process that this user may not see"),
            pid => format!("{name} of {} ({pid})", socket.owner.name),
        }
    }

    pub(super) fn has_packet_socket(&self, pid: u32) -> bool {
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
            bursts: 0,
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
            bursts: socket.causes.bursts,
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

    pub(super) fn name_of(&self, state: &SocketState) -> String {
        let device = self.sources.devices.get(&state.device).map(|link| link.name.as_str());
        target::name(state, device)
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
