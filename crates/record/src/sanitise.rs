//! Escapes for foreign text in terminals, Markdown, spreadsheets and labels of metrics.
//!
//! Records, plans, publishers and errors carry foreign names. Characters that move the cursor,
//! begin a line or a formula, or change the direction of writing become escapes such as `\u001b` or
//! `\n`, as in JSON. Within the strings of a JSON text this replacement keeps the meaning, so one
//! rule serves both.
//!
//! The template escapes HTML. Output for programs (JSON lines in files, Parquet) stays unchanged.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes control characters, line ends and marks of direction, for text on one line.
pub fn text(text: &str) -> Cow<'_, str> {
    escaped(text, is_hostile)
}

/// Escapes text of several lines: as [`text`], but line feeds and tabs stay.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_hostile(c) && c != '\n' && c != '\t')
}

/// Writes a word of a command as a shell reads it: with quotes where it needs them.
pub fn shell_word(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+@".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")).into(),
    }
}

/// Escapes a cell of a Markdown table: one line without markup.
pub fn markdown(cell: &str) -> String {
    let mut out = String::with_capacity(cell.len());
    // Our escapes are text, too: Markdown would remove a backslash before punctuation.
    for c in text(cell).chars() {
        if matches!(c, '\\' | '|' | '<' | '[' | ']' | '`') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Escapes a field of comma-separated values (RFC 4180): quoted if needed, and never a formula.
/// Numbers stay numbers.
pub fn csv(field: &str) -> Cow<'_, str> {
    let field = text(field);
    // Spreadsheets mark text by an apostrophe (OWASP, "CSV Injection").
    let field = if is_formula(&field) { Cow::Owned(format!("'{field}")) } else { field };
    // Semicolons separate fields in locales with a decimal comma.
    if field.contains([',', ';', '"']) {
        Cow::Owned(format!("\"{}\"", field.replace('"', "\"\"")))
    } else {
        field
    }
}

/// Escapes the value of a label between its quotes (OpenMetrics 1.0, "escaped-string").
pub fn label(value: &str) -> String {
    text(value).replace('\\', "\\\\").replace('"', "\\\"")
}

/// Tests if a spreadsheet would compute the field.
fn is_formula(field: &str) -> bool {
    let is_number = || field.parse::<f64>().is_ok_and(f64::is_finite);
    // East Asian spreadsheets accept the wide forms, too.
    field.starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']) && !is_number()
}

/// Tests for a character with an effect instead of a glyph.
pub(crate) fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Marks, embeddings, overrides and isolates of direction (Unicode Standard Annex 9).
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            | '\u{2028}' | '\u{2029}')
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !is_escaped(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_command_can_be_pasted() {
        for (word, expected) in [
            ("r.jsonl", "r.jsonl"),
            ("my data/p l.toml", "'my data/p l.toml'"),
            ("", "''"),
            ("a'b", r"'a'\''b'"),
        ] {
            assert_eq!(shell_word(word), expected);
        }
    }
    use proptest::prelude::*;

    const HOSTILE: &str =
        "a\u{1b}[2J\u{7}\0\r\n\t\u{9b}1m\u{7f}\u{202e}\u{2066}\u{200f}\u{61c}\u{2028}z";

    #[test]
    fn what_acts_is_shown_instead() {
        let shown = r"a\u001b[2J\u0007\u0000\r\n\t\u009b1m\u007f\u202e\u2066\u200f\u061c\u2028z";
        assert_eq!(text(HOSTILE), shown);
        assert_eq!(lines("one\n\ttwo\r\n"), "one\n\ttwo\\r\n");
        assert!(matches!(text("11 µs – plain, ŝ 漢 \\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_keeps_its_meaning() {
        let json = serde_json::to_string(HOSTILE).unwrap();
        let shown = lines(&json);
        assert!(!shown.contains(is_hostile), "{shown}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), HOSTILE);
    }

    #[test]
    fn a_field_is_no_formula_and_a_number_stays_one() {
        for (field, wanted) in [
            ("=1+1", "'=1+1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("-cmd|' /C calc'!A0", "'-cmd|' /C calc'!A0"),
            ("+1,2", "\"'+1,2\""),
            ("-1.5", "-1.5"),
            ("+2e-3", "+2e-3"),
            ("-1e5", "-1e5"),
            ("-", "'-"),
            ("-inf", "'-inf"),
            ("a,b\"c", "\"a,b\"\"c\""),
            ("a;=1", "\"a;=1\""),
            ("\r=1", "\\r=1"),
            ("plain", "plain"),
            ("", ""),
        ] {
            assert_eq!(csv(field), wanted, "{field}");
        }
    }

    #[test]
    fn a_cell_holds_no_markup_and_a_label_stays_within_its_quotes() {
        assert_eq!(markdown("a|b\n<img> [x](y) `c` \\|"), r"a\|b\\n\<img> \[x\](y) \`c\` \\\|");
        assert_eq!(label("a\"b\\c\nd"), r#"a\"b\\c\\nd"#);
    }

    proptest! {
        #[test]
        fn nothing_that_acts_is_left_and_showing_twice_changes_nothing(any in ".*") {
            let once = text(&any).into_owned();
            prop_assert!(!once.contains(is_hostile));
            prop_assert_eq!(text(&once), &once[..]);
            prop_assert!(!csv(&any).starts_with(['=', '@']));
            prop_assert!(!markdown(&any).contains('\n'));
        }
    }
}
