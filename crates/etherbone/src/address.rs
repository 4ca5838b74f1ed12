//! Address of a slave: `proto/host[/port]`, as the C tools write it.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use daqmeter_harness::Resolved;
use daqmeter_wire::etherbone::{PORT, Width, Widths};

use crate::EbError;
use crate::transport::emulated::Bridge;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    /// IPv6 first, then IPv4.
    Any,
    V4,
    V6,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `udp/host[/port]`, `udp4/...`, `udp6/...`.
    Udp(HostPort),
    /// `tcp/host[/port]`, `tcp4/...`, `tcp6/...`.
    Tcp(HostPort),
    /// `dev/<name under /dev>`: a serial port, a PCIe or USB character device, a pseudo-terminal.
    Dev(String),
    /// `tunnel/<tunnel host>/<port>/<host>[/port]`: UDP behind a proxy on TCP.
    Tunnel { proxy: HostPort, target: String },
    /// `emu/<bridge>`: an emulated timing receiver behind an emulated bridge, in this process.
    Emulated(Resolved<Bridge>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    pub family: IpFamily,
    pub name: String,
    pub port: u16,
}

impl HostPort {
    /// Reads `host[/port]`; without a port, or with an empty one, that of Etherbone.
    pub fn parse(family: IpFamily, text: &str) -> Result<HostPort, EbError> {
        let (name, port) = text.split_once('/').unwrap_or((text, ""));
        if name.is_empty() {
            return Err(wrong(text, "has no host"));
        }
        let port = match port {
            "" => PORT,
            port => port.parse().map_err(|_| wrong(text, &format!("`{port}` is not a port")))?,
        };
        Ok(HostPort { family, name: name.to_owned(), port })
    }

    pub fn resolve(&self) -> Result<Vec<SocketAddr>, EbError> {
        let bare = self.name.trim_start_matches('[').trim_end_matches(']');
        let found = (bare, self.port).to_socket_addrs().map_err(EbError::io(&self.name))?;
        let wanted = |address: &SocketAddr| match self.family {
            IpFamily::Any => true,
            IpFamily::V4 => address.is_ipv4(),
            IpFamily::V6 => address.is_ipv6(),
        };
        let mut addresses: Vec<SocketAddr> = found.filter(wanted).collect();
        addresses.sort_by_key(SocketAddr::is_ipv4);
        addresses.dedup();
        if addresses.is_empty() {
            let family = if self.family == IpFamily::V4 { "IPv4" } else { "IPv6" };
            return Err(EbError::Other(format!("{} has no {family} address", self.name)));
        }
        Ok(addresses)
    }

    /// Returns what opens first of the host's addresses, or the error of the last.
    pub(crate) fn first<T>(
        &self,
        what: &str,
        mut open: impl FnMut(SocketAddr) -> io::Result<T>,
    ) -> Result<T, EbError> {
        let mut refused = None;
        for to in self.resolve()? {
            match open(to) {
                Ok(opened) => return Ok(opened),
                Err(error) => refused = Some(EbError::io(format!("cannot {what} {to}"))(error)),
            }
        }
        Err(refused.expect("resolving gives at least one address"))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self.family {
            IpFamily::Any => "",
            IpFamily::V4 => "4",
            IpFamily::V6 => "6",
        };
        write!(f, "{family}/{}/{}", self.name, self.port)
    }
}

fn wrong(text: &str, why: &str) -> EbError {
    EbError::Other(format!(
        "`{text}` {why}; addresses are udp/host[/port], tcp/host[/port], dev/name, tunnel/host/port/host[/port], emu/bridge"
    ))
}

impl Address {
    pub fn parse(text: &str) -> Result<Address, EbError> {
        let (proto, rest) = text.split_once('/').ok_or_else(|| wrong(text, "has no protocol"))?;
        let proto = proto.to_ascii_lowercase();
        let family = match proto.as_bytes().last() {
            Some(b'4') => IpFamily::V4,
            Some(b'6') => IpFamily::V6,
            _ => IpFamily::Any,
        };
        match proto.as_str() {
            "udp" | "udp4" | "udp6" => Ok(Address::Udp(HostPort::parse(family, rest)?)),
            "tcp" | "tcp4" | "tcp6" => Ok(Address::Tcp(HostPort::parse(family, rest)?)),
            "dev" if !rest.is_empty() && !rest.split('/').any(|part| part == "..") => {
                Ok(Address::Dev(rest.to_owned()))
            }
            "emu" if !rest.is_empty() => {
                rest.parse().map(Address::Emulated).map_err(EbError::Other)
            }
            "tunnel" | "tunnel4" | "tunnel6" => {
                let [name, port, target] = rest.splitn(3, '/').collect::<Vec<_>>()[..] else {
                    return Err(wrong(text, "has no target behind the tunnel"));
                };
                HostPort::parse(IpFamily::Any, target)?;
                let proxy = HostPort::parse(family, &format!("{name}/{port}"))?;
                Ok(Address::Tunnel { proxy, target: target.to_owned() })
            }
            _ => Err(wrong(text, "is not an address")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Udp(host) => write!(f, "udp{host}"),
            Address::Tcp(host) => write!(f, "tcp{host}"),
            Address::Dev(name) => write!(f, "dev/{name}"),
            Address::Tunnel { proxy, target } => write!(f, "tunnel{proxy}/{target}"),
            Address::Emulated(bridge) => write!(f, "emu/{bridge}"),
        }
    }
}

/// Reads a number as C's strtoull does with base 0: 0x1f, 017, 15.
pub fn parse_number(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a number such as 0x1f, 017 or 15");
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    // from_str_radix accepts a sign, which the C tools refuse.
    if digits.starts_with(['+', '-']) {
        return Err(wrong());
    }
    u64::from_str_radix(digits, radix).map_err(|_| wrong())
}

/// Reads a set of widths: `8/16/32/64`, also with commas or semicolons.
pub fn parse_widths(text: &str) -> Result<Widths, String> {
    text.split(['/', ',', ';']).try_fold(Widths::NONE, |set, part| {
        let known = Width::ALL.into_iter().find(|width| width.bits().to_string() == part);
        let wrong = || format!("`{text}` is not a set of widths such as 32 or 8/16/32/64");
        let width = known.ok_or_else(wrong)?;
        Ok(set.or(Widths::only(width)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_c_tools_are_understood_and_others_say_why_not() {
        for (text, shown) in [
            ("udp/192.168.0.1", Ok("udp/192.168.0.1/60368")),
            ("UDP4/host/1234", Ok("udp4/host/1234")),
            ("tcp6/::1/", Ok("tcp6/::1/60368")),
            ("dev/pts/3", Ok("dev/pts/3")),
            ("tunnel/gate/8183/tr5/60368", Ok("tunnel/gate/8183/tr5/60368")),
            ("emu/scu-pcie-2018", Ok("emu/scu-pcie-2018")),
            ("localhost", Err("no protocol")),
            ("udp/", Err("no host")),
            ("udp/host/http", Err("`http` is not a port")),
            ("udp/host/70000", Err("not a port")),
            ("sctp/host", Err("is not an address")),
            ("tunnel/gate/8183", Err("no target")),
            ("dev/../etc/passwd", Err("is not an address")),
            ("dev/", Err("is not an address")),
        ] {
            match (Address::parse(text), shown) {
                (Ok(address), Ok(shown)) => assert_eq!(address.to_string(), shown),
                (Err(error), Err(why)) => assert!(error.to_string().contains(why), "{error}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_family_that_the_host_lacks_is_refused() {
        let resolved =
            |family, text: &str| HostPort::parse(family, text).and_then(|host| host.resolve());
        let found = resolved(IpFamily::Any, "127.0.0.1/5").unwrap();
        assert_eq!(found, ["127.0.0.1:5".parse().unwrap()]);
        let refused = resolved(IpFamily::V6, "127.0.0.1/5").unwrap_err().to_string();
        assert!(refused.contains("no IPv6"), "{refused}");
        assert_eq!(resolved(IpFamily::V6, "::1").unwrap()[0].port(), PORT);
    }

    #[test]
    fn numbers_and_sets_of_widths_are_read_as_by_the_c_tools() {
        let all = u64::MAX;
        for (text, value) in
            [("0x1F", 31), ("017", 15), ("15", 15), ("0", 0), ("0xffffffffffffffff", all)]
        {
            assert_eq!(parse_number(text), Ok(value), "{text}");
        }
        for wrong in ["", "0x", "08", "-1", "+1", "0x-1", "1 ", "deadbeef"] {
            assert!(parse_number(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_widths("8/16,32;64"), Ok(Widths::ALL));
        assert_eq!(parse_widths("32"), Ok(Widths::only(Width::W32)));
        for wrong in ["24", "", "32/"] {
            assert!(parse_widths(wrong).is_err(), "{wrong}");
        }
    }
}
