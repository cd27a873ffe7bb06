//! Syntax of the answers of a chat template: markers of reasoning, tool calls and their arguments.

use std::borrow::Cow;

/// Marker or pattern; static in the table of families.
pub(crate) type Text = Cow<'static, str>;

/// Syntax of the answers of a template.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Syntax {
    /// Start and end of reasoning.
    pub(crate) reasoning: Option<[Text; 2]>,
    /// Tool calls; `None`: the template cannot write any.
    pub(crate) calls: Option<CallSyntax>,
    /// Structure of the answer outside of calls.
    pub(crate) layout: Layout,
    /// Markers around content, which are no part of it.
    pub(crate) wrappers: Vec<Text>,
    /// Special tokens that end the answer though the vocabulary may not say so.
    pub(crate) ends: Vec<Text>,
}

/// Structure of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Text with markers.
    #[default]
    Markers,
    /// Messages of gpt-oss: `<|channel|>final<|message|>…<|end|>`.
    Harmony,
    /// Messages of Functionary 3.2: `>>>all\n…>>>NAME\n{…}`.
    Recipients,
}

/// Syntax of tool calls: `section[0] (call[0] form call[1])+ section[1]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallSyntax {
    /// Markers around all calls; empty: none.
    pub(crate) section: [Text; 2],
    /// Markers around a call; empty: none.
    pub(crate) call: [Text; 2],
    /// Text between two calls, for grammars.
    pub(crate) between: Text,
    /// Name and arguments.
    pub(crate) form: Form,
}

/// Syntax of the name and the arguments of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Form {
    /// `{"name": NAME, "arguments": {…}}`, or a list of them.
    Json(JsonForm),
    /// A header with the name, then the arguments.
    Named {
        /// Patterns of the header, see [`super::parser::pattern`]; grammars write the first.
        headers: Vec<Text>,
        /// The arguments.
        arguments: Arguments,
    },
}

/// Call as a JSON object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JsonForm {
    /// Key of the name, for grammars.
    pub(crate) name: Text,
    /// Key of the arguments, for grammars.
    pub(crate) arguments: Text,
    /// Whether the calls are items of a list.
    pub(crate) is_list: bool,
    /// Whether calls have no marker: an answer that begins with `{` is one if it has the name of a tool.
    pub(crate) is_bare: bool,
    /// `{NAME: {…}}`.
    pub(crate) is_keyed: bool,
}

/// Syntax of arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Arguments {
    /// JSON object.
    Json,
    /// Python's keyword arguments up to `)`.
    Keywords,
    /// Gemma's objects: bare keys, strings in `<|"|>`.
    Gemma,
    /// One element for each argument.
    Tagged(Tags),
}

/// Elements of arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tags {
    /// Start of an argument.
    pub(crate) start: Text,
    /// Patterns of the text between the start and the value.
    pub(crate) headers: Vec<Text>,
    /// End of the value.
    pub(crate) end: Text,
    /// Whether the value is on lines of its own.
    pub(crate) is_padded: bool,
}

impl JsonForm {
    /// `{"name": NAME, "arguments": {…}}`.
    pub(crate) const HERMES: Self = Self {
        name: Cow::Borrowed("name"),
        arguments: Cow::Borrowed("arguments"),
        is_list: false,
        is_bare: false,
        is_keyed: false,
    };
}

impl CallSyntax {
    /// `<tool_call>\n{"name": NAME, "arguments": {…}}\n</tool_call>`.
    pub(crate) fn hermes() -> Self {
        Self {
            section: ["".into(), "".into()],
            call: ["<tool_call>\n".into(), "\n</tool_call>".into()],
            between: "\n".into(),
            form: Form::Json(JsonForm::HERMES),
        }
    }

    /// Form of a call that is an object, which models write without the markers, too.
    pub(crate) fn loose(&self) -> Option<&JsonForm> {
        match &self.form {
            Form::Json(form) if !form.is_keyed => Some(form),
            _ => None,
        }
    }

    /// Text that the first call begins with, without white space; empty for bare JSON.
    pub(crate) fn opening(&self) -> &str {
        let section = self.section[0].trim();
        if section.is_empty() { self.call[0].trim() } else { section }
    }
}

impl Syntax {
    /// All marker texts, for the special tokens in them.
    pub(crate) fn markers(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        all.extend(self.reasoning.iter().flatten().map(AsRef::as_ref));
        all.extend(self.wrappers.iter().map(AsRef::as_ref));
        if let Some(calls) = &self.calls {
            all.extend(calls.section.iter().chain(&calls.call).map(AsRef::as_ref));
            match &calls.form {
                Form::Json(_) => {}
                Form::Named { headers, arguments } => {
                    all.extend(headers.iter().map(AsRef::as_ref));
                    match arguments {
                        Arguments::Json | Arguments::Keywords => {}
                        Arguments::Gemma => all.push(super::parser::GEMMA_QUOTE),
                        Arguments::Tagged(tags) => {
                            all.extend([tags.start.as_ref(), tags.end.as_ref()]);
                            all.extend(tags.headers.iter().map(AsRef::as_ref));
                        }
                    }
                }
            }
        }
        if self.layout == Layout::Harmony {
            all.extend(super::parser::HARMONY_MARKERS);
        }
        all
    }
}
