//! The table of losses: where the kernel and the card count a packet that does not go on. A row is
//! all that is known of a kind of loss; a new one is a row here.
//!
//! Counters have the names of `nstat`, `ip -s link` and `/proc/net/softnet_stat`; reasons those of
//! `enum skb_drop_reason` (`include/net/dropreason-core.h`).

use daqmeter_record::watched::LossEffect::{self, Lost, Repeated, Sent, Unwanted};
use daqmeter_record::watched::WatchedPlace::{
    self, Backlog, BeforeThisHost, Card, Driver, Exit, Ip, Program, TrafficControl, Transport,
};

/// Owner of a row's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Of {
    Device,
    /// Counters of `ethtool -S`: each name here is a part of the driver's.
    Driver,
    /// The queueing discipline at the entry of a device.
    Entry,
    /// That at its exit, which is not on the way of what comes in.
    Exit,
    Cpu,
    /// IP, UDP and TCP of a network namespace.
    Protocols,
    /// Packets of [`Of::Protocols`] that are missing between two counters: some of them may have
    /// been no business of this row, so that a reason has to confirm it.
    Difference,
    /// Numbers in packets, or in what a program says.
    Number,
}

pub(crate) struct Row {
    pub place: WatchedPlace,
    pub of: Of,
    pub plus: &'static [&'static str],
    pub minus: &'static [&'static str],
    /// Reasons of `skb:kfree_skb` with which the kernel drops such a packet.
    pub reasons: &'static [&'static str],
    pub reason: &'static str,
    pub effect: LossEffect,
    /// `{at}` stands for the device or CPU.
    pub change: &'static str,
}

const ROW: Row = Row {
    place: Card,
    of: Of::Protocols,
    plus: &[],
    minus: &[],
    reasons: &[],
    reason: "",
    effect: Lost,
    change: "",
};

/// Packets that came to the receiving side of a device.
pub(crate) const PACKETS: &str = "rx_packets";
/// Packets that the kernel refused for a device; those of a full backlog are among them.
pub(crate) const REFUSED: &str = "rx_dropped";
pub(crate) const BACKLOG: &str = "dropped";

/// Packets at the entry of IP, each segment for itself (`ip_rcv_core`): `IpInReceives` counts those
/// that were merged once.
pub(crate) const INTO_IP: &[&str] = &[
    "IpExtInNoECTPkts",
    "IpExtInECT1Pkts",
    "IpExtInECT0Pkts",
    "IpExtInCEPkts",
    "Ip6InNoECTPkts",
    "Ip6InECT1Pkts",
    "Ip6InECT0Pkts",
    "Ip6InCEPkts",
];
/// Packets at the entry of IP, those that were merged once.
pub(crate) const MERGED_INTO_IP: &[&str] = &["IpInReceives", "Ip6InReceives"];
/// Bytes of the packets of [`INTO_IP`], with their headers of IP.
pub(crate) const OCTETS: &[&str] = &["IpExtInOctets", "Ip6InOctets"];
/// Packets that programs read: UDP counts them then.
pub(crate) const READ: &[&str] = &["UdpInDatagrams", "Udp6InDatagrams"];
pub(crate) const BUFFER_FULL: &[&str] = &["UdpRcvbufErrors", "Udp6RcvbufErrors"];
const CHECKSUM: &[&str] = &["UdpInCsumErrors", "Udp6InCsumErrors"];
const MEMORY: &[&str] = &["UdpMemErrors", "Udp6MemErrors"];
pub(crate) const NO_PORT: &[&str] = &["UdpNoPorts", "Udp6NoPorts"];

/// Rows in the order in which a packet passes them.
pub(crate) const ROWS: &[Row] = &[
    Row {
        place: BeforeThisHost,
        of: Of::Number,
        reason: "their numbers are missing in what came to this host, and it dropped none of them",
        change: "look at the switches on the way, and at the sender: its ethtool -S, tc -s qdisc",
        ..ROW
    },
    Row {
        of: Of::Device,
        plus: &["rx_missed_errors"],
        reason: "the card found no free descriptor in its ring",
        change: "a longer ring: ethtool -G {at} rx MAXIMUM (ethtool -g {at} shows it)",
        ..ROW
    },
    Row {
        of: Of::Device,
        plus: &["rx_fifo_errors", "rx_over_errors"],
        reason: "the card's own memory was full",
        change: "packets must leave the card faster: ethtool -c {at}; lspci -vv for its link",
        ..ROW
    },
    Row {
        of: Of::Device,
        plus: &["rx_crc_errors", "rx_frame_errors"],
        reason: "damaged on the wire",
        change: "another cable or transceiver: ethtool -m {at}",
        ..ROW
    },
    Row {
        of: Of::Device,
        plus: &["rx_length_errors"],
        reason: "longer than the device takes",
        change: "the sender's MTU here, too: ip link set {at} mtu BYTES",
        ..ROW
    },
    Row {
        of: Of::Driver,
        plus: &["rx_discards_phy"],
        reason: "the buffer of the card's port was full",
        change: "packets must leave the card faster: ethtool -c {at}; lspci -vv for its link",
        ..ROW
    },
    Row {
        of: Of::Driver,
        plus: &["allowance_exceeded"],
        reason: "above the allowance of this virtual machine",
        change: "a larger kind of machine: the cloud queued or dropped them",
        ..ROW
    },
    Row {
        place: Driver,
        of: Of::Driver,
        plus: &["xdp_drop"],
        reason: "a program of XDP dropped them",
        change: "without the program: ip link set {at} xdp off",
        ..ROW
    },
    Row {
        place: Driver,
        of: Of::Difference,
        reasons: &["XDP", "NOT_SPECIFIED do_xdp_generic"],
        reason: "a program of generic XDP dropped them",
        change: "without the program: ip link set DEVICE xdpgeneric off",
        ..ROW
    },
    Row {
        place: Backlog,
        of: Of::Cpu,
        plus: &[BACKLOG],
        reasons: &["CPU_BACKLOG"],
        reason: "the backlog of the CPU was full",
        change: "a longer one: sysctl net.core.netdev_max_backlog=10000; or other CPUs in \
                 /sys/class/net/DEVICE/queues/rx-*/rps_cpus",
        ..ROW
    },
    Row {
        place: TrafficControl,
        of: Of::Entry,
        plus: &["drops"],
        reasons: &["TC_INGRESS"],
        reason: "a filter or policer at the entry of the device dropped them",
        change: "look at its rate: tc -s filter show dev {at} ingress",
        ..ROW
    },
    Row {
        place: TrafficControl,
        of: Of::Difference,
        reasons: &["NETFILTER_DROP"],
        reason: "the firewall dropped them at the entry of a device",
        change: "find the rule: nft list ruleset (counters show it)",
        ..ROW
    },
    Row {
        place: Ip,
        plus: &["IpInHdrErrors", "Ip6InHdrErrors"],
        reasons: &["IP_INHDR", "IP_CSUM"],
        reason: "wrong headers of IP, or their time to live ended",
        change: "look at the sender: tcpdump -vv",
        ..ROW
    },
    Row {
        place: Ip,
        plus: &["IpInAddrErrors", "Ip6InAddrErrors"],
        reason: "addressed to a host that this one does not forward to",
        change: "the sender's address, or sysctl net.ipv4.ip_forward=1",
        effect: Unwanted,
        ..ROW
    },
    Row {
        place: Ip,
        plus: &["IpInDiscards", "Ip6InDiscards"],
        reasons: &["NOMEM"],
        reason: "the kernel had no memory for them",
        change: "more memory for the kernel: sysctl vm.min_free_kbytes",
        ..ROW
    },
    Row {
        place: Ip,
        plus: &["TcpExtIPReversePathFilter"],
        reasons: &["IP_RPFILTER"],
        reason: "the reverse path filter dropped them: the way back is another device",
        change: "sysctl net.ipv4.conf.all.rp_filter=2 (and conf.DEVICE), or a route",
        ..ROW
    },
    Row {
        place: Ip,
        plus: &["IpReasmFails", "Ip6ReasmFails"],
        reasons: &["FRAG_REASM_TIMEOUT", "FRAG_TOO_FAR"],
        reason: "fragments whose others did not come in time",
        change: "datagrams below the MTU; or sysctl net.ipv4.ipfrag_high_thresh=67108864",
        ..ROW
    },
    Row {
        place: Ip,
        of: Of::Difference,
        plus: &["IpInReceives", "Ip6InReceives", "IpReasmOKs", "Ip6ReasmOKs"],
        minus: &[
            "IpInDelivers",
            "Ip6InDelivers",
            "IpInHdrErrors",
            "Ip6InHdrErrors",
            "IpInAddrErrors",
            "Ip6InAddrErrors",
            "IpInDiscards",
            "Ip6InDiscards",
            "IpInUnknownProtos",
            "Ip6InUnknownProtos",
            "IpExtInNoRoutes",
            "Ip6InNoRoutes",
            "IpExtInTruncatedPkts",
            "Ip6InTruncatedPkts",
            "IpForwDatagrams",
            "Ip6OutForwDatagrams",
            "TcpExtIPReversePathFilter",
            "IpReasmReqds",
            "Ip6ReasmReqds",
        ],
        reasons: &["NETFILTER_DROP"],
        reason: "the firewall dropped them",
        change: "find the rule: nft list ruleset (counters show it)",
        ..ROW
    },
    Row {
        place: Transport,
        plus: CHECKSUM,
        reasons: &["UDP_CSUM"],
        reason: "wrong checksums of UDP",
        change: "look at the sender; checksums by the card: ethtool -K DEVICE rx off",
        ..ROW
    },
    Row {
        place: Transport,
        plus: MEMORY,
        reasons: &["PROTO_MEM"],
        reason: "the memory of all UDP sockets, or of a cgroup, was at its limit",
        change: "sysctl net.ipv4.udp_mem='... ... PAGES' (three numbers), or memory.max of its cgroup",
        ..ROW
    },
    Row {
        place: Transport,
        plus: &["UdpInErrors", "Udp6InErrors"],
        minus: &[
            "UdpRcvbufErrors",
            "Udp6RcvbufErrors",
            "UdpInCsumErrors",
            "Udp6InCsumErrors",
            "UdpMemErrors",
            "Udp6MemErrors",
        ],
        reasons: &["SOCKET_FILTER", "XFRM_POLICY"],
        reason: "the socket's own filter dropped them",
        change: "the program set it (SO_ATTACH_FILTER): ss -ulnpb shows it",
        ..ROW
    },
    Row {
        place: Transport,
        plus: NO_PORT,
        reasons: &["NO_SOCKET"],
        reason: "no socket at their port",
        change: "the program was not there, or listens at another address or port",
        effect: Unwanted,
        ..ROW
    },
    Row {
        place: Transport,
        plus: &["TcpExtTCPBacklogDrop"],
        reasons: &["SOCKET_BACKLOG"],
        reason: "the backlog of a TCP socket was full while the program held it",
        change: "a larger receive buffer: sysctl net.ipv4.tcp_rmem",
        effect: Repeated,
        ..ROW
    },
    Row {
        place: Transport,
        plus: &[
            "TcpExtTCPRcvQDrop",
            "TcpExtTCPZeroWindowDrop",
            "TcpExtRcvPruned",
            "TcpExtOfoPruned",
        ],
        reasons: &["TCP_ZEROWINDOW", "TCP_OFO_QUEUE_PRUNE"],
        reason: "the buffer of a TCP socket was full",
        change: "the program reads too slowly; sysctl net.ipv4.tcp_rmem holds longer stalls",
        effect: Repeated,
        ..ROW
    },
    Row {
        place: Transport,
        plus: &["TcpInCsumErrors"],
        reasons: &["TCP_CSUM"],
        reason: "wrong checksums of TCP",
        change: "look at the sender; checksums by the card: ethtool -K DEVICE rx off",
        effect: Repeated,
        ..ROW
    },
    Row {
        place: Transport,
        plus: &["TcpExtListenOverflows"],
        reasons: &["TCP_LISTEN_OVERFLOW"],
        reason: "connections that a program did not accept in time",
        change: "a longer queue: sysctl net.core.somaxconn, and the program's listen()",
        effect: Repeated,
        ..ROW
    },
    Row {
        place: Exit,
        of: Of::Exit,
        plus: &["drops"],
        reasons: &["QDISC_DROP"],
        reason: "the queue at the exit of the device was full, or its rate is limited",
        change: "look at its rate and length: tc -s qdisc show dev {at}",
        effect: Sent,
        ..ROW
    },
    Row {
        place: Program,
        of: Of::Number,
        reason: "the program read them, and does not count them as received",
        change: "look at what it does after its reads: its own queues and checks",
        ..ROW
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_the_way_and_each_has_words() {
        let places: Vec<_> = ROWS.iter().map(|row| row.place).collect();
        assert!(places.is_sorted());
        for row in ROWS {
            assert!(!row.reason.is_empty() && !row.change.is_empty());
            let is_counted = !matches!(row.of, Of::Difference | Of::Number);
            assert!(!is_counted || !row.plus.is_empty(), "{}", row.reason);
            assert!(row.of != Of::Difference || !row.reasons.is_empty(), "{}", row.reason);
        }
    }
}
