//! Parts of a page that can change by themselves: its header and its sections. Changed parts update
//! a page in a browser.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;

const KEY: &str = " data-part=\"";
/// Beginning and end of elements that are parts. The template puts each at the beginning of a line;
/// text of records is escaped.
const ELEMENTS: [(&str, &str); 2] = [("<header", "</header>\n"), ("<section", "</section>\n")];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    parts: Vec<(String, String)>,
    /// Name of the page's state: different pages have different ones.
    pub state: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Update<'a> {
    order: Vec<&'a str>,
    changed: HashMap<&'a str, &'a str>,
}

impl Parts {
    pub(crate) fn of(body: &str) -> Parts {
        let mut parts: Vec<(String, String)> = Vec::new();
        let mut names = HashSet::new();
        let mut rest = body;
        while let Some((from, end)) = next_element(rest) {
            let to = rest[from..].find(end).map(|at| from + at + end.len());
            let to = to.unwrap_or(rest.len());
            let html = &rest[from..to];
            let name = key(html).unwrap_or_default();
            if names.insert(name.to_owned()) {
                parts.push((name.to_owned(), html.to_owned()));
            }
            rest = &rest[to..];
        }
        let state = format!("{:016x}", fingerprint(&parts));
        Parts { parts, state }
    }

    /// Returns the update from a page with the parts of `before`, as JSON on one line; `None`
    /// without a change.
    pub fn update_from(&self, before: &Parts) -> Option<String> {
        if *self == *before {
            return None;
        }
        let known: HashMap<&str, &str> = before.pairs().collect();
        let changed = self.pairs().filter(|(name, html)| known.get(name) != Some(html)).collect();
        let update = Update { order: self.pairs().map(|(name, _)| name).collect(), changed };
        Some(serde_json::to_string(&update).expect("texts with text keys"))
    }

    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parts.iter().map(|(name, html)| (&**name, &**html))
    }
}

fn next_element(text: &str) -> Option<(usize, &'static str)> {
    let at_line = |begin: &str| {
        let starts = text.match_indices(begin).map(|(at, _)| at);
        let mut starts = starts.filter(|at| *at == 0 || text.as_bytes()[at - 1] == b'\n');
        starts.next()
    };
    ELEMENTS.iter().filter_map(|(begin, end)| Some((at_line(begin)?, *end))).min()
}

fn key(html: &str) -> Option<&str> {
    let tag = &html[..html.find('>')?];
    let from = tag.find(KEY)? + KEY.len();
    tag[from..].split('"').next()
}

fn fingerprint(parts: &[(String, String)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<header data-part=\"header\">\n<h1>A</h1>\n</header>\n<main>\n<section data-part=\"a\" id=\"a\">\n1 &lt;section\n</section>\n\n<section class=\"x\" data-part=\"b\">\n2\n</section>\n</main>\n";

    #[test]
    fn every_part_is_found_with_its_name() {
        let parts = Parts::of(PAGE);
        let names: Vec<&str> = parts.pairs().map(|(name, _)| name).collect();
        assert_eq!(names, ["header", "a", "b"]);
        for (_, html) in parts.pairs() {
            assert!(PAGE.contains(html) && html.ends_with(">\n"), "{html}");
        }
    }

    #[test]
    fn only_what_changed_is_sent() {
        let before = Parts::of(PAGE);
        assert_eq!(before.update_from(&before), None);
        let after = Parts::of(&PAGE.replace("2\n", "3\n"));
        assert_ne!(after.state, before.state);
        let update = after.update_from(&before).unwrap();
        let wanted = serde_json::json!({
            "order": ["header", "a", "b"],
            "changed": {"b": "<section class=\"x\" data-part=\"b\">\n3\n</section>\n"},
        });
        assert_eq!(serde_json::from_str::<serde_json::Value>(&update).unwrap(), wanted);
        assert!(!update.contains('\n'));
    }

    #[test]
    fn a_part_that_went_is_missing_in_the_order_and_one_that_came_is_sent() {
        let (all, fewer) = (Parts::of(PAGE), Parts::of(&PAGE.replace("\"b\"", "\"c\"")));
        let update: serde_json::Value =
            serde_json::from_str(&fewer.update_from(&all).unwrap()).unwrap();
        assert_eq!(update["order"], serde_json::json!(["header", "a", "c"]));
        assert_eq!(update["changed"].as_object().unwrap().len(), 1);
    }
}
