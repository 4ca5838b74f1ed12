//! Maps of few entries, as records have some of each: an entry takes its own bytes, where the least node of a tree has space for eleven.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Index;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map of few entries in the order of their keys. It is written as any map; of two entries with one key the last is kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Few<K, V> {
    /// By their keys, none twice.
    entries: Vec<(K, V)>,
}

impl<K, V> Default for Few<K, V> {
    fn default() -> Few<K, V> {
        Few { entries: Vec::new() }
    }
}

impl<K: Ord, V> Few<K, V> {
    /// Where the entry of a key is, or belongs.
    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.entries.binary_search_by(|(other, _)| other.borrow().cmp(key))
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let at = self.place(key).ok()?;
        Some(&self.entries[at].1)
    }

    /// Puts a value at a key; the one that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.entries[at].1, value)),
            Err(at) => {
                self.entries.insert(at, (key, value));
                None
            }
        }
    }

    /// The value of a key, which is put there where there is none.
    pub fn get_or_insert(&mut self, key: K, value: V) -> &mut V {
        let at = match self.place(&key) {
            Ok(at) => at,
            Err(at) => {
                self.entries.insert(at, (key, value));
                at
            }
        };
        &mut self.entries[at].1
    }
}

impl<K, V> Few<K, V> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.into_iter()
    }

    /// The values in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|(_, value)| value)
    }

    /// Keeps the entries for which this is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.entries.retain_mut(|(key, value)| keep(key, value));
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Gives back memory that no entry needs.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.entries.shrink_to_fit();
    }
}

impl<'a, K, V> IntoIterator for &'a Few<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = std::iter::Map<std::slice::Iter<'a, (K, V)>, fn(&(K, V)) -> (&K, &V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter().map(|(key, value)| (key, value))
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for Few<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Few<K, V> {
        let mut entries: Vec<(K, V)> = entries.into_iter().collect();
        // Stable, and the last of equal ones is kept.
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        entries.dedup_by(|later, kept| {
            let is_same = later.0 == kept.0;
            if is_same {
                std::mem::swap(later, kept);
            }
            is_same
        });
        Few { entries }
    }
}

impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for Few<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("the map has an entry of this key")
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Few<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: Serialize, V: Serialize> Serialize for Few<K, V> {
    fn serialize<S: Serializer>(&self, sink: S) -> Result<S::Ok, S::Error> {
        sink.collect_map(self)
    }
}

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for Few<K, V> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Few<K, V>, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);
        impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Entries<K, V> {
            type Value = Few<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Few<K, V>, A::Error> {
                // Not inserted one by one: a file may have many, in any order.
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(entries.into_iter().collect())
            }
        }
        source.deserialize_map(Entries(PhantomData))
    }
}

/// A map in the schema.
impl<K: JsonSchema, V: JsonSchema> JsonSchema for Few<K, V> {
    fn inline_schema() -> bool {
        BTreeMap::<K, V>::inline_schema()
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        BTreeMap::<K, V>::schema_name()
    }

    fn schema_id() -> std::borrow::Cow<'static, str> {
        BTreeMap::<K, V>::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<K, V>::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Entry by entry, all at once, and from JSON, which may have a key twice.
        #[test]
        fn few_entries_are_those_of_a_tree(entries in proptest::collection::vec((0_u32..20, any::<u64>()), 0..30)) {
            let tree: BTreeMap<u32, u64> = entries.iter().copied().collect();
            let collected: Few<u32, u64> = entries.iter().copied().collect();
            let (mut inserted, mut added) = (Few::default(), Few::default());
            for &(key, value) in &entries {
                inserted.insert(key, value);
                *added.get_or_insert(key, 0) = value;
            }
            let json: Vec<String> = entries.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
            let read: Few<u32, u64> = serde_json::from_str(&format!("{{{}}}", json.join(","))).unwrap();
            for few in [&collected, &inserted, &added, &read] {
                prop_assert!(few.iter().eq(&tree), "{few:?}");
                prop_assert!((0..20).all(|key| few.get(&key) == tree.get(&key)));
                prop_assert_eq!(serde_json::to_string(few).unwrap(), serde_json::to_string(&tree).unwrap());
            }
        }
    }

    #[test]
    fn an_entry_can_be_kept_or_not_and_is_found_by_its_key() {
        let mut few: Few<String, u64> = [("b", 2), ("a", 1), ("c", 3)]
            .map(|(key, value)| (key.to_owned(), value))
            .into_iter()
            .collect();
        assert_eq!((few["b"], few.get("d"), few.len()), (2, None, 3));
        few.retain(|_, value| *value != 2);
        assert_eq!(format!("{few:?}"), r#"{"a": 1, "c": 3}"#);
        few.clear();
        assert!(few.is_empty());
    }
}
