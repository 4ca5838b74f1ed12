//! The kernel's routing tables, and the speed of network devices by sysfs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::host::Files;

/// Returns the device of the route with the longest prefix; the first of several, which the kernel
/// lists by metric.
pub fn device(files: &Files, to: IpAddr) -> Option<String> {
    let routes: Vec<Route> = match to {
        IpAddr::V4(_) => {
            let text = files.text("proc/net/route")?;
            text.lines().skip(1).filter_map(route_v4).collect()
        }
        IpAddr::V6(_) => {
            let text = files.text("proc/net/ipv6_route")?;
            text.lines().filter_map(route_v6).collect()
        }
    };
    let fits = routes.into_iter().filter(|route| route.prefix(to) == route.prefix(route.to));
    let best = fits.reduce(|best, next| if next.bits > best.bits { next } else { best });
    best.map(|route| route.device)
}

struct Route {
    to: IpAddr,
    bits: u32,
    device: String,
}

impl Route {
    fn prefix(&self, address: IpAddr) -> u128 {
        let (address, width) = match address {
            IpAddr::V4(address) => (u128::from(address.to_bits()), 32_u32),
            IpAddr::V6(address) => (address.to_bits(), 128),
        };
        let away = width.saturating_sub(self.bits);
        address.checked_shr(away).unwrap_or(0)
    }
}

/// Parses a line of `/proc/net/route`: device, destination, gateway, flags, three counts, mask.
/// Addresses have the byte order of the kernel's memory.
fn route_v4(line: &str) -> Option<Route> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [device, to, _, _, _, _, _, mask, ..] = fields[..] else {
        return None;
    };
    let address = |text| u32::from_str_radix(text, 16).map(u32::to_ne_bytes);
    Some(Route {
        to: Ipv4Addr::from(address(to).ok()?).into(),
        bits: u32::from_be_bytes(address(mask).ok()?).leading_ones(),
        device: device.to_owned(),
    })
}

/// Parses a line of `/proc/net/ipv6_route`: destination, prefix bits, six others, flags, device.
/// Leaves out routes that reject.
fn route_v6(line: &str) -> Option<Route> {
    const REJECT: u32 = 0x0200;
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [to, bits, _, _, _, _, _, _, flags, device] = fields[..] else {
        return None;
    };
    let flags = u32::from_str_radix(flags, 16).ok()?;
    let to = u128::from_str_radix(to, 16).ok()?;
    (flags & REJECT == 0).then_some(Route {
        to: Ipv6Addr::from_bits(to).into(),
        bits: u32::from_str_radix(bits, 16).ok()?,
        device: device.to_owned(),
    })
}

pub fn bytes_per_s(files: &Files, device: &str) -> Option<f64> {
    let speed = files.text(&format!("sys/class/net/{device}/speed"))?;
    let mbit_per_s: f64 = speed.parse().ok()?;
    (mbit_per_s > 0.0).then_some(mbit_per_s * 1e6 / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::root_with;

    fn host() -> (tempfile::TempDir, Files) {
        let v4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth1\t00020A0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            not a route\n";
        let zero = "0".repeat(32);
        let rest = format!("{zero} 00 {zero} 00000400 00000001 00000000");
        let v6 = format!(
            "fd000000000000000000000000000000 40 {rest} 00000001 eth1\n{zero} 00 {rest} 00000003 eth0\nfd000000000000000000000000000000 60 {rest} 00200200 lo\n"
        );
        root_with(&[
            ("proc/net/route", v4),
            ("proc/net/ipv6_route", &v6),
            ("sys/class/net/eth0/speed", "-1\n"),
            ("sys/class/net/eth1/speed", "25000\n"),
        ])
    }

    #[test]
    fn the_device_is_that_of_the_longest_prefix() {
        let (_root, files) = host();
        for (to, wanted) in
            [("10.10.2.7", "eth1"), ("10.10.3.7", "eth0"), ("fd00::7", "eth1"), ("fe00::7", "eth0")]
        {
            let found = device(&files, to.parse().unwrap());
            assert_eq!(found.as_deref(), Some(wanted), "{to}");
        }
        let nowhere = Files::below("/nonexistent");
        assert_eq!(device(&nowhere, "10.10.2.7".parse().unwrap()), None);
    }

    #[test]
    fn a_device_that_states_no_speed_has_none() {
        let (_root, files) = host();
        assert_eq!(bytes_per_s(&files, "eth1"), Some(3.125e9));
        assert_eq!(bytes_per_s(&files, "eth0"), None);
        assert_eq!(bytes_per_s(&files, "eth2"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_table_of_routes_breaks_the_reader(line in "[ -~\t]{0,200}") {
            let _ = (route_v4(&line), route_v6(&line));
        }
    }
}
