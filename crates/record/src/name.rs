//! Short texts that many records have in common: names of stages, counters and limits, units, commands. Those that are read from one
//! file are held once ([`Seen`]).

use std::borrow::{Borrow, Cow};
use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A text that does not change and may be shared. It is written as a text, and compares as one.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether both are one text in memory.
    #[cfg(test)]
    pub(crate) fn is_shared_with(&self, other: &Name) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&*self.0, f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

macro_rules! compares_as_text {
    ($($text:ty),*) => {$(
        impl PartialEq<$text> for Name {
            fn eq(&self, other: &$text) -> bool {
                *self.0 == **other
            }
        }

        impl PartialEq<Name> for $text {
            fn eq(&self, other: &Name) -> bool {
                **self == *other.0
            }
        }
    )*};
}
compares_as_text!(&str, String);

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other
    }
}

impl PartialEq<Name> for str {
    fn eq(&self, other: &Name) -> bool {
        *self == *other.0
    }
}

macro_rules! from_text {
    ($($text:ty),*) => {$(
        impl From<$text> for Name {
            fn from(text: $text) -> Name {
                Name(text.into())
            }
        }
    )*};
}
from_text!(&str, String, Cow<'_, str>);

impl From<&String> for Name {
    fn from(text: &String) -> Name {
        Name(text.as_str().into())
    }
}

impl From<&Name> for Name {
    fn from(name: &Name) -> Name {
        name.clone()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.as_str().to_owned()
    }
}

impl From<&Name> for String {
    fn from(name: &Name) -> String {
        name.as_str().to_owned()
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, sink: S) -> Result<S::Ok, S::Error> {
        sink.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Name, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Name, E> {
                Ok(name_of(text))
            }
        }
        source.deserialize_str(Text)
    }
}

/// A text in the schema.
impl JsonSchema for Name {
    fn inline_schema() -> bool {
        String::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        String::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        String::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// Sets of two places each: a survey's records have some hundreds of different names, a sweep's a command for each point.
const SETS: usize = 2048;

/// Longer texts are not looked for: few are as long, and fewer are said twice.
const MAX_SEEN_BYTES: usize = 1024;

/// Names that one thread has read, so that the next of the same text shares it. It holds the last ones: of each two whose texts fall into
/// one set, so that no file can make it large or slow.
pub(crate) struct Seen {
    sets: Vec<[Option<Name>; 2]>,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen { sets: vec![[None, None]; SETS] }
    }
}

thread_local! {
    /// What this thread shares names with, while it reads a file.
    static SEEN: RefCell<Option<Seen>> = const { RefCell::new(None) };
}

impl Seen {
    /// Does what reads names, which share what was seen before.
    pub(crate) fn with<R>(&mut self, read: impl FnOnce() -> R) -> R {
        let own = std::mem::replace(self, Seen { sets: Vec::new() });
        let outer = SEEN.replace(Some(own));
        let done = read();
        if let Some(own) = SEEN.replace(outer) {
            *self = own;
        }
        done
    }

    fn name(&mut self, text: &str) -> Name {
        let Some([last, before]) = self.sets.get_mut(set_of(text)) else {
            return Name::from(text);
        };
        let is_it = |name: &&mut Option<Name>| name.as_ref().is_some_and(|name| *name == *text);
        if let Some(Some(name)) = [&mut *last, &mut *before].into_iter().find(is_it) {
            return name.clone();
        }
        let name = Name::from(text);
        *before = last.replace(name.clone());
        name
    }
}

fn name_of(text: &str) -> Name {
    if text.len() > MAX_SEEN_BYTES {
        return Name::from(text);
    }
    SEEN.with_borrow_mut(|seen| match seen {
        Some(seen) => seen.name(text),
        None => Name::from(text),
    })
}

/// The set of a text: words of it multiplied by an odd number without pattern (2^64 over the golden ratio), as Fibonacci hashing does
/// (Knuth, volume 3, 6.4). That texts of one set can be made up costs sharing, no time.
#[allow(clippy::cast_possible_truncation, reason = "as few bits as number the sets")]
fn set_of(text: &str) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut words = text.as_bytes().chunks_exact(8);
    let mut mixed = text.len() as u64;
    let mut mix = |word: u64| mixed = (mixed.rotate_left(5) ^ word).wrapping_mul(ODD);
    for word in &mut words {
        mix(u64::from_le_bytes(word.try_into().unwrap_or_default()));
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    mix(u64::from_le_bytes(last));
    (mixed >> (u64::BITS - SETS.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Name {
        serde_json::from_str(&serde_json::to_string(text).unwrap()).unwrap()
    }

    #[test]
    fn a_name_is_its_text_in_json_and_in_comparisons() {
        let name = Name::from("read \"out\"");
        assert_eq!(serde_json::to_string(&name).unwrap(), r#""read \"out\"""#);
        assert_eq!(read("read \"out\""), name);
        assert_eq!(name, "read \"out\"");
        assert_eq!("read \"out\"", name);
        assert_ne!(name, *"read");
        assert!(serde_json::from_str::<Name>("7").is_err());
        assert_eq!((&*Name::default(), format!("{name:>11}")), ("", " read \"out\"".to_owned()));
    }

    #[test]
    fn names_that_are_read_together_are_held_once_and_others_are_not() {
        let long = "x".repeat(MAX_SEEN_BYTES + 1);
        let mut seen = Seen::default();
        let texts = ["", "a", "polls", "read-out, 8 B", "a text of 24 bytes, more"];
        for text in texts.iter().copied().chain([&*long]) {
            let (first, second) = seen.with(|| (read(text), read(text)));
            let third = seen.with(|| read(text));
            assert_eq!((&*first, &*second, &*third), (text, text, text));
            let is_shared = text.len() <= MAX_SEEN_BYTES;
            assert_eq!(first.is_shared_with(&second), is_shared, "{text}");
            assert_eq!(first.is_shared_with(&third), is_shared, "{text}");
            assert!(!first.is_shared_with(&read(text)), "nothing is read now");
        }
    }

    #[test]
    fn more_texts_than_are_remembered_stay_what_they_are() {
        let text = |at: usize| format!("name {at}");
        let mut seen = Seen::default();
        let names: Vec<Name> = seen.with(|| (0..20_000).map(|at| read(&text(at))).collect());
        assert!(names.iter().enumerate().all(|(at, name)| *name == text(at)));
        let kept = seen.sets.iter().flatten().flatten().count();
        assert!(kept > SETS && kept <= 2 * SETS, "{kept}");
    }
}
