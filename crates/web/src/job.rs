//! A running request.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Function, Promise};
use stonechat::CancelToken;
use stonechat_api::ApiResult;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;

use crate::error::exception;

/// A running request, whose result is a promise.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Job {
    result: Promise,
    cancel: Cancel,
}

#[wasm_bindgen]
impl Job {
    /// JSON of the whole answer. The answer of a cancelled job is what there is of it.
    pub fn done(&self) -> Promise {
        self.result.clone()
    }

    /// Ends the request after the running step.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }
}

impl Job {
    /// Starts a request that calls `on_event` with its events and can be cancelled.
    pub(crate) fn start<R>(
        on_event: Function,
        request: impl FnOnce(Events, Cancel) -> R + 'static,
    ) -> Self
    where
        R: Future<Output = ApiResult<String>> + 'static,
    {
        let cancel = Cancel::default();
        let of_request = cancel.clone();
        let result = future_to_promise(async move {
            let result = request(Events(on_event), of_request).await;
            result.map(JsValue::from).map_err(|error| exception(&error))
        });
        Self { result, cancel }
    }
}

/// Receiver of a request's events.
#[derive(Debug, Clone)]
pub(crate) struct Events(Function);

impl Events {
    pub(crate) fn new(receiver: Function) -> Self {
        Self(receiver)
    }

    /// Function that gets the events.
    pub(crate) fn receiver(&self) -> Function {
        self.0.clone()
    }

    /// Sends an event, whose text is JSON. An exception of the receiver does not end the request.
    pub(crate) fn send(&self, event: &impl std::fmt::Display) {
        let _ = self.0.call1(&JsValue::UNDEFINED, &event.to_string().into());
    }
}

/// Cancels the running parts of a request, and those that start later.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cancel(Rc<RefCell<CancelState>>);

#[derive(Debug, Default)]
struct CancelState {
    is_cancelled: bool,
    tokens: Vec<CancelToken>,
}

impl Cancel {
    /// Cancels the request.
    fn cancel(&self) {
        let mut state = self.0.borrow_mut();
        state.is_cancelled = true;
        state.tokens.drain(..).for_each(|token| token.cancel());
    }

    /// Adds the token of a part.
    pub(crate) fn add(&self, token: CancelToken) {
        let mut state = self.0.borrow_mut();
        if state.is_cancelled {
            token.cancel();
        } else {
            state.tokens.push(token);
        }
    }
}
