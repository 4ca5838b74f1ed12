//! Widths of addresses and of the data port, sets of them, and their alignment.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Width {
    W8 = 1,
    W16 = 2,
    W32 = 4,
    W64 = 8,
}

impl Width {
    pub const ALL: [Width; 4] = [Width::W8, Width::W16, Width::W32, Width::W64];

    /// Returns the bytes: 1, 2, 4 or 8. It is also the bit of the width in a set.
    #[inline]
    pub const fn bytes(self) -> usize {
        self as usize
    }

    #[inline]
    pub const fn bits(self) -> u32 {
        self as u32 * 8
    }

    #[inline]
    pub const fn of_bytes(bytes: u64) -> Option<Width> {
        match bytes {
            1 => Some(Width::W8),
            2 => Some(Width::W16),
            4 => Some(Width::W32),
            8 => Some(Width::W64),
            _ => None,
        }
    }

    #[inline]
    pub const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }
}

/// A set of widths, as a nibble of the message header: bit 0 for 8 bits to bit 3 for 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Widths(u8);

impl Widths {
    /// No width: never legal on the wire.
    pub const NONE: Widths = Widths(0);
    pub const ALL: Widths = Widths(0xF);

    #[inline]
    pub const fn only(width: Width) -> Widths {
        Widths(width as u8)
    }

    /// Takes the low four bits.
    #[inline]
    pub const fn from_nibble(nibble: u8) -> Widths {
        Widths(nibble & 0xF)
    }

    /// Returns the set as four bits.
    #[inline]
    pub const fn nibble(self) -> u8 {
        self.0
    }

    #[must_use]
    pub const fn and(self, other: Widths) -> Widths {
        Widths(self.0 & other.0)
    }

    #[must_use]
    pub const fn or(self, other: Widths) -> Widths {
        Widths(self.0 | other.0)
    }

    pub const fn has(self, width: Width) -> bool {
        self.0 & width as u8 != 0
    }

    /// Returns the widest, which both sides settle on.
    #[inline]
    pub fn widest(self) -> Option<Width> {
        Width::ALL.into_iter().rev().find(|width| self.has(*width))
    }

    #[inline]
    pub fn single(self) -> Option<Width> {
        Width::of_bytes(u64::from(self.0))
    }
}

/// `8/16/32/64`, or `none`.
impl core::fmt::Display for Widths {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if *self == Widths::NONE {
            return f.write_str("none");
        }
        let mut separator = "";
        for width in Width::ALL.into_iter().filter(|width| self.has(*width)) {
            write!(f, "{separator}{}", width.bits())?;
            separator = "/";
        }
        Ok(())
    }
}

/// The two widths of a conversation, and the alignment that follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EbLayout {
    pub address: Width,
    pub data: Width,
}

impl EbLayout {
    /// 32-bit addresses and 32-bit data, as in the HDL slave and LiteX.
    pub const L32: EbLayout = EbLayout { address: Width::W32, data: Width::W32 };

    /// Returns the bytes of every base address, read address and value: the widest of both, at
    /// least 2. Narrower ones are extended with zeros at the most significant side.
    #[inline]
    pub const fn value_bytes(self) -> usize {
        let (address, data) = (self.address.bytes(), self.data.bytes());
        let most = if address > data { address } else { data };
        if most < 2 { 2 } else { most }
    }

    /// Returns the bytes of the message header and of each record header: at least 4; with 8 the
    /// last four are zero.
    #[inline]
    pub const fn header_bytes(self) -> usize {
        if self.value_bytes() < 4 { 4 } else { self.value_bytes() }
    }

    pub fn all() -> impl Iterator<Item = EbLayout> {
        Width::ALL
            .into_iter()
            .flat_map(|address| Width::ALL.into_iter().map(move |data| EbLayout { address, data }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_follows_the_wider_of_both_widths() {
        use Width::{W8, W16, W32, W64};
        for (address, data, wanted) in [
            (W8, W8, (2, 4)),
            (W16, W8, (2, 4)),
            (W32, W8, (4, 4)),
            (W16, W32, (4, 4)),
            (W64, W8, (8, 8)),
            (W32, W64, (8, 8)),
        ] {
            let layout = EbLayout { address, data };
            assert_eq!((layout.value_bytes(), layout.header_bytes()), wanted, "{layout:?}");
        }
        assert_eq!(EbLayout::all().count(), 16);
    }

    #[test]
    fn both_sides_settle_on_the_widest_that_they_share() {
        let ours = Widths::ALL;
        let theirs = Widths::only(Width::W16).or(Widths::only(Width::W32));
        assert_eq!(ours.and(theirs).widest(), Some(Width::W32));
        assert_eq!(theirs.single(), None);
        assert_eq!(Widths::only(Width::W64).and(theirs).widest(), None);
        assert_eq!(format!("{theirs} {}", Widths::NONE), "16/32 none");
    }
}
