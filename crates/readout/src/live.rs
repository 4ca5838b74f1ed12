//! The cards that are read out in this process, for who watches them meanwhile: metrics of `readout
//! run`.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::Card;

/// Cards by the names of their scenarios. Those whose chains have ended are gone by themselves.
static CARDS: Mutex<Vec<(String, Weak<Mutex<Card>>)>> = Mutex::new(Vec::new());

/// A chain with this card begins.
pub fn register(name: &str, card: &Arc<Mutex<Card>>) {
    let mut cards = CARDS.lock().unwrap_or_else(PoisonError::into_inner);
    cards.retain(|(_, card)| card.strong_count() > 0);
    cards.push((name.to_owned(), Arc::downgrade(card)));
}

/// Calls this with the name and the card of each chain that runs. A chain waits while its card is
/// looked at.
pub fn each_card(mut look: impl FnMut(&str, &Card)) {
    let cards = CARDS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for (name, card) in cards {
        if let Some(card) = card.upgrade() {
            look(&name, &card.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}
