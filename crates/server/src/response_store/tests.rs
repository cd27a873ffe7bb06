//! Bounds of the store, and its owners.

use std::time::{Duration, Instant};

use stonechat_api::responses::KeptResponse;

use super::{MAX_AGE, MAX_BYTES, MAX_RESPONSE_BYTES, MAX_RESPONSES, Missing, Owner, ResponseStore};

fn response(id: &str, n_bytes: usize) -> KeptResponse {
    let (body, messages) = ("b".repeat(n_bytes), "[]".to_owned());
    KeptResponse { id: id.to_owned(), body, messages, items: vec![format!("msg_{id}")] }
}

fn key(key: &str) -> Owner {
    Some(key.as_bytes().into())
}

/// Responses and bytes of all shelves.
fn sizes(store: &ResponseStore, now: Instant) -> (usize, usize) {
    let all = store.lock(now);
    let shelves = all.shelves.values();
    let n_responses = shelves.clone().map(|shelf| shelf.entries.len()).sum();
    let n_items: usize = shelves.clone().map(|shelf| shelf.items.len()).sum();
    assert!(n_items <= n_responses, "items of removed responses");
    (n_responses, shelves.map(|shelf| shelf.n_bytes).sum())
}

#[test]
fn a_response_belongs_to_the_key_that_made_it() {
    let store = ResponseStore::default();
    store.insert(&key("one"), response("a", 1));
    assert!(store.get(&key("one"), "a").is_ok());
    assert_eq!(store.with_item(&key("one"), "msg_a").unwrap().id, "a");
    for other in [key("two"), None] {
        assert_eq!(store.get(&other, "a"), Err(Missing::Unknown));
        assert!(store.with_item(&other, "msg_a").is_none());
        assert!(!store.delete(&other, "a"));
    }
    assert!(store.delete(&key("one"), "a"));
    assert_eq!(store.get(&key("one"), "a"), Err(Missing::Unknown));
    assert!(store.with_item(&key("one"), "msg_a").is_none());
    assert_eq!(sizes(&store, Instant::now()), (0, 0));
}

#[test]
fn number_bytes_and_age_are_bounded() {
    let store = ResponseStore::default();
    let start = Instant::now();
    for i in 0..MAX_RESPONSES {
        store.insert_at(&None, response(&i.to_string(), 1), start);
    }
    // The first one was used last.
    assert!(store.get_at(&None, "0", start).is_ok());
    store.insert_at(&None, response("more", 1), start);
    assert!(store.get_at(&None, "0", start).is_ok());
    assert_eq!(store.get_at(&None, "1", start), Err(Missing::Unknown));
    assert_eq!(sizes(&store, start).0, MAX_RESPONSES);

    let late = start + MAX_AGE + Duration::from_secs(1);
    assert_eq!(store.get_at(&None, "0", late), Err(Missing::Unknown));
    assert_eq!(sizes(&store, late), (0, 0));

    for i in 0..20 {
        store.insert_at(&None, response(&i.to_string(), MAX_RESPONSE_BYTES - 100), late);
        assert!(sizes(&store, late).1 <= MAX_BYTES);
    }
    assert!(store.get_at(&None, "19", late).is_ok());
    assert_eq!(store.get_at(&None, "0", late), Err(Missing::Unknown));
}

#[test]
fn a_response_that_is_too_large_is_known_as_such() {
    let store = ResponseStore::default();
    store.insert(&key("one"), response("large", MAX_RESPONSE_BYTES));
    assert_eq!(store.get(&key("one"), "large"), Err(Missing::TooLarge));
    assert_eq!(store.get(&key("two"), "large"), Err(Missing::Unknown));
    assert!(store.with_item(&key("one"), "msg_large").is_none());
    assert!(sizes(&store, Instant::now()).1 < 100);
    assert!(store.delete(&key("one"), "large"));
}

#[test]
fn a_key_pushes_out_its_own_responses() {
    let store = ResponseStore::default();
    let now = Instant::now();
    store.insert_at(&key("small"), response("first", 1), now);
    store.insert_at(&key("small"), response("second", MAX_RESPONSE_BYTES - 100), now);
    for i in 0..2 * MAX_RESPONSES {
        store.insert_at(&key("many"), response(&i.to_string(), 1), now);
    }
    for i in 0..20 {
        let id = format!("large {i}");
        store.insert_at(&key("bytes"), response(&id, MAX_RESPONSE_BYTES - 100), now);
    }
    for id in ["first", "second"] {
        assert!(store.get_at(&key("small"), id, now).is_ok(), "{id}");
    }
    assert!(store.get_at(&key("bytes"), "large 19", now).is_ok());
    assert!(store.get_at(&key("many"), &(2 * MAX_RESPONSES - 1).to_string(), now).is_ok());
    let (n_responses, n_bytes) = sizes(&store, now);
    assert!(n_responses <= MAX_RESPONSES && n_bytes <= MAX_BYTES);
}
