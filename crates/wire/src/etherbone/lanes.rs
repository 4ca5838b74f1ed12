use super::{Width, WireError};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endian {
    /// Low addresses are the most significant lanes.
    Big,
    /// Low addresses are the least significant lanes.
    Little,
}

/// An unbroken, aligned run of byte lanes inside a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lanes {
    port: Width,
    size: Width,
    shift: u8,
}

impl Lanes {
    #[inline]
    pub const fn full(port: Width) -> Lanes {
        Lanes { port, size: port, shift: 0 }
    }

    /// Returns the lanes for `size` bytes at an address, of which only the low bits count.
    #[inline]
    pub fn at(address: u64, size: Width, port: Width, endian: Endian) -> Option<Lanes> {
        let (width, bytes) = (port.bytes() as u64, size.bytes() as u64);
        let low = address & (width - 1);
        if bytes > width || !low.is_multiple_of(bytes) {
            return None;
        }
        let shift = match endian {
            Endian::Big => width - (low + bytes),
            Endian::Little => low,
        };
        Some(Lanes { port, size, shift: u8::try_from(shift).expect("below 8") })
    }

    #[inline]
    pub fn of_select(select: u8, port: Width) -> Result<Lanes, WireError> {
        let wrong = WireError::Select(select);
        let shift = select.trailing_zeros();
        let size = Width::of_bytes(u64::from(select.count_ones())).ok_or(wrong)?;
        let bytes = u32::from(size as u8);
        let unbroken = u32::from(select) >> shift == (1_u32 << bytes) - 1;
        let aligned = shift.is_multiple_of(bytes);
        let inside = shift + bytes <= u32::from(port as u8);
        if unbroken && aligned && inside {
            Ok(Lanes { port, size, shift: u8::try_from(shift).expect("below 8") })
        } else {
            Err(wrong)
        }
    }

    #[inline]
    pub fn select(self) -> u8 {
        let run = (1_u32 << self.size.bytes()) - 1;
        u8::try_from(run << self.shift).expect("lanes end inside the port")
    }

    #[inline]
    pub fn size(self) -> Width {
        self.size
    }

    /// Returns the low address bits that a device of that endianness sees: the slave ignores those
    /// on the wire.
    #[inline]
    pub fn low_bits(self, endian: Endian) -> u64 {
        let (width, bytes, shift) =
            (self.port.bytes() as u64, self.size.bytes() as u64, u64::from(self.shift));
        match endian {
            Endian::Big => width - (shift + bytes),
            Endian::Little => shift,
        }
    }

    #[inline]
    pub fn place(self, value: u64) -> u64 {
        (value & self.size.mask()) << (8 * u32::from(self.shift))
    }

    #[inline]
    pub fn take(self, word: u64) -> u64 {
        word >> (8 * u32::from(self.shift)) & self.size.mask()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_byte_accesses() {
        let write = Lanes::at(0x10001, Width::W8, Width::W32, Endian::Big).unwrap();
        assert_eq!((write.select(), write.place(0x7f)), (0x04, 0x007f_0000));
        let read = Lanes::at(0x10001, Width::W8, Width::W32, Endian::Little).unwrap();
        assert_eq!((read.select(), read.take(0x3300)), (0x02, 0x33));
    }

    #[test]
    fn only_runs_inside_the_port_are_selects() {
        let runs =
            |port| (0..=255).filter(|select| Lanes::of_select(*select, port).is_ok()).count();
        assert_eq!(runs(Width::W64), 8 + 4 + 2 + 1);
        assert_eq!(runs(Width::W32), 4 + 2 + 1);
        assert_eq!(runs(Width::W16), 2 + 1);
        assert_eq!(runs(Width::W8), 1);
        for wrong in [0x00, 0x05, 0x06, 0x07, 0x6F, 0x3C] {
            assert_eq!(Lanes::of_select(wrong, Width::W64), Err(WireError::Select(wrong)));
        }
    }

    #[test]
    fn select_and_address_are_inverses_for_both_endians() {
        for port in Width::ALL {
            for size in Width::ALL.into_iter().filter(|size| *size <= port) {
                for low in (0..port.bytes() as u64).step_by(size.bytes()) {
                    for endian in [Endian::Big, Endian::Little] {
                        let lanes = Lanes::at(0x1000 + low, size, port, endian).unwrap();
                        assert_eq!(Lanes::of_select(lanes.select(), port), Ok(lanes));
                        assert_eq!(lanes.low_bits(endian), low);
                        assert_eq!(lanes.take(lanes.place(u64::MAX)), size.mask());
                    }
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_the_port_has_no_lanes() {
        assert_eq!(Lanes::at(0, Width::W64, Width::W32, Endian::Big), None);
        assert_eq!(Lanes::at(1, Width::W16, Width::W32, Endian::Big), None);
        assert_eq!(Lanes::full(Width::W32).select(), 0x0F);
    }
}
