//! Address of a slave: `proto/host[/port]`, as the C tools write it.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

use daqmeter_wire::etherbone::{PORT, Width, Widths};

use crate::EbError;

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
    Udp(IpFamily, HostPort),
    /// `tcp/host[/port]`, `tcp4/...`, `tcp6/...`.
    Tcp(IpFamily, HostPort),
    /// `dev/<name under /dev>`: a serial port, a PCIe or USB character device, a pseudo-terminal.
    Dev(String),
    /// `tunnel/<tunnel host>/<port>/<host>[/port]`: UDP behind a proxy on TCP.
    Tunnel {
        /// IP versions of the connection to the proxy.
        family: IpFamily,
        proxy: HostPort,
        target: String,
    },
    /// `emu/<bridge>`: an emulated timing receiver behind an emulated bridge, in this process.
    Emulated(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    pub name: String,
    pub port: u16,
}

impl HostPort {
    /// Reads `host[/port]`; without a port, or with an empty one, that of Etherbone.
    pub fn parse(text: &str) -> Result<HostPort, EbError> {
        let (name, port) = text.split_once('/').unwrap_or((text, ""));
        if name.is_empty() {
            return Err(wrong(text, "has no host"));
        }
        let port = match port {
            "" => PORT,
            port => port.parse().map_err(|_| wrong(text, &format!("`{port}` is not a port")))?,
        };
        Ok(HostPort { name: name.to_owned(), port })
    }

    pub fn resolve(&self, family: IpFamily) -> Result<Vec<SocketAddr>, EbError> {
        let bare = self.name.trim_start_matches('[').trim_end_matches(']');
        let found = (bare, self.port)
            .to_socket_addrs()
            .map_err(|error| EbError::Address(format!("{}: {error}", self.name)))?;
        let wanted = |address: &SocketAddr| match family {
            IpFamily::Any => true,
            IpFamily::V4 => address.is_ipv4(),
            IpFamily::V6 => address.is_ipv6(),
        };
        let mut addresses: Vec<SocketAddr> = found.filter(wanted).collect();
        addresses.sort_by_key(SocketAddr::is_ipv4);
        addresses.dedup();
        if addresses.is_empty() {
            let family = if family == IpFamily::V4 { "IPv4" } else { "IPv6" };
            return Err(EbError::Address(format!("{} has no {family} address", self.name)));
        }
        Ok(addresses)
    }
}

fn wrong(text: &str, why: &str) -> EbError {
    EbError::Address(format!(
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
            "udp" | "udp4" | "udp6" => Ok(Address::Udp(family, HostPort::parse(rest)?)),
            "tcp" | "tcp4" | "tcp6" => Ok(Address::Tcp(family, HostPort::parse(rest)?)),
            "dev" if !rest.is_empty() && !rest.split('/').any(|part| part == "..") => {
                Ok(Address::Dev(rest.to_owned()))
            }
            "emu" if !rest.is_empty() => Ok(Address::Emulated(rest.to_owned())),
            "tunnel" | "tunnel4" | "tunnel6" => {
                let mut parts = rest.splitn(3, '/');
                let (Some(name), Some(port), Some(target)) =
                    (parts.next(), parts.next(), parts.next())
                else {
                    return Err(wrong(text, "has no target behind the tunnel"));
                };
                HostPort::parse(target)?;
                let proxy = HostPort::parse(&format!("{name}/{port}"))?;
                Ok(Address::Tunnel { family, proxy, target: target.to_owned() })
            }
            _ => Err(wrong(text, "is not an address")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = |family: &IpFamily| match family {
            IpFamily::Any => "",
            IpFamily::V4 => "4",
            IpFamily::V6 => "6",
        };
        let socket = |f: &mut fmt::Formatter<'_>, protocol: &str, family, host: &HostPort| {
            write!(f, "{protocol}{}/{}/{}", version(family), host.name, host.port)
        };
        match self {
            Address::Udp(family, host) => socket(f, "udp", family, host),
            Address::Tcp(family, host) => socket(f, "tcp", family, host),
            Address::Dev(name) => write!(f, "dev/{name}"),
            Address::Tunnel { family, proxy, target } => {
                socket(f, "tunnel", family, proxy)?;
                write!(f, "/{target}")
            }
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
    fn addresses_of_the_c_tools_are_understood() {
        for (text, shown) in [
            ("udp/192.168.0.1", "udp/192.168.0.1/60368"),
            ("UDP4/host/1234", "udp4/host/1234"),
            ("tcp6/::1/", "tcp6/::1/60368"),
            ("dev/wbm0", "dev/wbm0"),
            ("dev/pts/3", "dev/pts/3"),
            ("tunnel/gate/8183/tr5/60368", "tunnel/gate/8183/tr5/60368"),
            ("emu/scu-pcie-2018", "emu/scu-pcie-2018"),
        ] {
            assert_eq!(Address::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_is_not_an_address_says_why() {
        for (text, why) in [
            ("localhost", "no protocol"),
            ("udp/", "no host"),
            ("udp/host/http", "`http` is not a port"),
            ("udp/host/70000", "not a port"),
            ("sctp/host", "is not an address"),
            ("tunnel/gate/8183", "no target"),
            ("dev/../etc/passwd", "is not an address"),
            ("dev/", "is not an address"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_family_that_the_host_lacks_is_refused() {
        let host = HostPort::parse("127.0.0.1/5").unwrap();
        assert_eq!(host.resolve(IpFamily::Any).unwrap(), ["127.0.0.1:5".parse().unwrap()]);
        assert!(host.resolve(IpFamily::V6).unwrap_err().to_string().contains("no IPv6"));
        assert_eq!(HostPort::parse("::1").unwrap().resolve(IpFamily::V6).unwrap()[0].port(), PORT);
    }

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        for (text, value) in
            [("0x1F", 31), ("017", 15), ("15", 15), ("0", 0), ("0xffffffffffffffff", u64::MAX)]
        {
            assert_eq!(parse_number(text), Ok(value), "{text}");
        }
        for wrong in ["", "0x", "08", "-1", "+1", "0x-1", "1 ", "deadbeef"] {
            assert!(parse_number(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn widths_are_joined_by_any_separator() {
        assert_eq!(parse_widths("8/16,32;64"), Ok(Widths::ALL));
        assert_eq!(parse_widths("32"), Ok(Widths::only(Width::W32)));
        assert!(
            parse_widths("24").is_err()
                && parse_widths("").is_err()
                && parse_widths("32/").is_err()
        );
    }
}
