//! Grouping of values by their keys.

use std::collections::HashMap;
use std::hash::Hash;

/// Groups values by their keys, in the order of first appearance.
pub fn in_groups<K: Clone + Eq + Hash, V>(
    values: impl Iterator<Item = (K, V)>,
) -> Vec<(K, Vec<V>)> {
    let (mut places, mut groups) = (HashMap::new(), Vec::<(K, Vec<V>)>::new());
    for (key, value) in values {
        let at = *places.entry(key.clone()).or_insert(groups.len());
        match groups.get_mut(at) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

/// Counts equal values, in the order of first appearance.
pub fn counted<T: Clone + Eq + Hash>(values: impl Iterator<Item = T>) -> Vec<(T, usize)> {
    let groups = in_groups(values.map(|value| (value, ())));
    groups.into_iter().map(|(value, same)| (value, same.len())).collect()
}
