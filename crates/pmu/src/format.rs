//! Formats of a PMU's configuration: the bits of the words that hold a field.
//! They are parsed from sysfs and never assumed: the bits of arm-cmn's `wp_grp` moved between Linux
//! 6.1 and 6.12. Grammar: Documentation/ABI/testing/sysfs-bus-event_source-devices-format,
//! `config1:0-7,32-35`.

use serde::Serialize;

/// Bits of one configuration word, lowest bits of the value first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FormatField {
    pub name: String,
    /// Index of the word: 0 for `config`, 1 for `config1`, 2 for `config2`.
    pub word: usize,
    /// Ranges of bits, first and last included.
    pub ranges: Vec<(u32, u32)>,
}

impl FormatField {
    /// Parses `config:FIRST-LAST`; `None` for another text.
    pub fn parse(name: &str, text: &str) -> Option<FormatField> {
        let (word, bits) = text.trim().split_once(':')?;
        let word = ["config", "config1", "config2"].iter().position(|known| *known == word)?;
        let range = |part: &str| -> Option<(u32, u32)> {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (first <= last && last < 64).then_some((first, last))
        };
        let ranges: Option<Vec<_>> = bits.split(',').map(range).collect();
        let format = FormatField { name: name.to_owned(), word, ranges: ranges? };
        (format.bits() <= 64).then_some(format)
    }

    pub fn bits(&self) -> u32 {
        self.ranges.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Writes the value into its words.
    ///
    /// # Errors
    /// Refuses a value of more bits than the field has.
    pub fn place(&self, value: u64, words: &mut [u64; 3]) -> Result<(), String> {
        let bits = self.bits();
        let max = u64::MAX.checked_shr(64 - bits).unwrap_or(0);
        if value > max {
            let name = &self.name;
            return Err(format!(
                "{name}={value:#x} does not fit: the field has {bits} bits, at most {max:#x}"
            ));
        }
        let mut rest = value;
        for (first, last) in &self.ranges {
            let width = last - first + 1;
            let mask = u64::MAX >> (64 - width);
            words[self.word] = words[self.word] & !(mask << first) | (rest & mask) << first;
            rest = rest.checked_shr(width).unwrap_or(0);
        }
        Ok(())
    }

    pub fn value(&self, words: &[u64; 3]) -> u64 {
        let (mut value, mut at) = (0, 0);
        for (first, last) in &self.ranges {
            let width = last - first + 1;
            value |= (words[self.word] >> first & (u64::MAX >> (64 - width))) << at;
            at += width;
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_fields_of_the_drivers() {
        let mut words = [0; 3];
        for (name, text, value) in [
            ("type", "config:0-15", 5),
            ("eventid", "config:16-26", 0xd),
            ("bynodeid", "config:31", 1),
        ] {
            FormatField::parse(name, text).unwrap().place(value, &mut words).unwrap();
        }
        FormatField::parse("nodeid", "config:32-47\n").unwrap().place(0x24, &mut words).unwrap();
        FormatField::parse("wp_val", "config1:0-63").unwrap().place(u64::MAX, &mut words).unwrap();
        assert_eq!(words, [0x24_800d_0005, u64::MAX, 0]);
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused_with_the_limit() {
        let field = FormatField::parse("nodeid", "config:32-47").unwrap();
        let error = field.place(0x1_0000, &mut [0; 3]).unwrap_err();
        assert_eq!(error, "nodeid=0x10000 does not fit: the field has 16 bits, at most 0xffff");
    }

    #[test]
    fn what_is_no_format_is_refused() {
        let texts = ["", "config", "config9:0-3", "config:9-3", "config:0-64", "config:0-63,0-63"];
        for text in texts {
            assert_eq!(FormatField::parse("x", text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn values_come_back_from_scattered_bits(value in any::<u64>(), before in any::<u64>(), parts in 1_usize..5) {
            let ranges: Vec<_> = (0..u32::try_from(parts).unwrap()).rev().map(|at| format!("{}-{}", at * 8, at * 8 + 4)).collect();
            let format = FormatField::parse("x", &format!("config2:{}", ranges.join(","))).unwrap();
            let value = value & (u64::MAX >> (64 - format.bits()));
            let mut words = [0, 0, before];
            format.place(value, &mut words).unwrap();
            prop_assert_eq!(format.value(&words), value);
            let between: u64 = 0xE0E0_E0E0_E0E0_E0E0;
            prop_assert_eq!(words[2] & between, before & between);
        }
    }
}
