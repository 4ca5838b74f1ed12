//! A list of names as one text in records and plans. Blanks separate names; a backslash escapes
//! a blank or a backslash in a name.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer>(names: &[String], out: S) -> Result<S::Ok, S::Error> {
    join(names).serialize(out)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(text: D) -> Result<Vec<String>, D::Error> {
    Ok(split(&String::deserialize(text)?))
}

pub(crate) fn join(names: &[String]) -> String {
    let escaped = |name: &String| name.replace('\\', "\\\\").replace(' ', "\\ ");
    names.iter().map(escaped).collect::<Vec<_>>().join(" ")
}

fn split(text: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let name = names.last_mut().expect("never empty");
        match letter {
            ' ' => names.push(String::new()),
            '\\' => name.extend(letters.next()),
            letter => name.push(letter),
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_with_blanks_and_backslashes() {
        let names = ["/dev/my board", "emu:l0", r"C:\card", " "].map(str::to_owned);
        assert_eq!(split(&join(&names)), names);
        assert_eq!(split("emu:ku0  emu:l0..4 "), ["emu:ku0", "emu:l0..4"]);
        assert!(split("").is_empty());
    }
}
