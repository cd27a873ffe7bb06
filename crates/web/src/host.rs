//! Objects of JavaScript that the engine holds.
//!
//! The engine's types may be sent to other threads, an object of JavaScript may not. The engine therefore holds a number,
//! and the thread that made it the object.

use std::cell::RefCell;
use std::collections::HashMap;

use wasm_bindgen::JsValue;

thread_local! {
    static OBJECTS: RefCell<HashMap<u32, JsValue>> = RefCell::default();
}

/// Number of an object of this thread, which the object lives as long as.
#[derive(Debug)]
pub(crate) struct HostObject(u32);

impl HostObject {
    pub(crate) fn new(object: impl Into<JsValue>) -> Self {
        OBJECTS.with_borrow_mut(|objects| {
            let number = (0..).find(|number| !objects.contains_key(number)).unwrap_or(u32::MAX);
            objects.insert(number, object.into());
            Self(number)
        })
    }

    /// The object; `None` on another thread.
    pub(crate) fn get(&self) -> Option<JsValue> {
        OBJECTS.with_borrow(|objects| objects.get(&self.0).cloned())
    }
}

impl Drop for HostObject {
    fn drop(&mut self) {
        // An object that is dropped on another thread lives until the worker ends, and so does one that is dropped with it.
        let object = OBJECTS.try_with(|objects| objects.borrow_mut().remove(&self.0));
        drop(object);
    }
}
