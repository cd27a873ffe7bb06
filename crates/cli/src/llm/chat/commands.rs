//! Commands of a conversation, with their help.

/// Commands, their arguments and help.
pub(super) const COMMANDS: [(&str, &str, &str); 12] = [
    ("/help", "", "list the commands"),
    ("/exit", "", "end (also Ctrl-D)"),
    ("/clear", "", "clear the conversation"),
    ("/regen", "", "regenerate the last answer"),
    ("/system", "[TEXT]", "show the system prompt, or set it and clear the conversation"),
    ("/think", "[HOW]", "reasoning: on, off, an effort such as low, show or hide"),
    ("/model", "NAME", "continue with another model"),
    ("/set", "NAME VALUE", "set temp, top_k, top_p, min_p, repeat_penalty, seed or n_predict"),
    ("/tokens", "", "number of tokens in the context"),
    ("/save", "FILE", "write the conversation as JSON"),
    ("/load", "FILE", "read a conversation written by /save"),
    ("/quit", "", "the same as /exit"),
];

/// Keys of the editor.
const KEYS: &str = "Ctrl-C stops an answer. Alt-Enter, \\ at the end of a line or \"\"\" around a text \
                    make a message of several lines.";

/// Answer to Ollama's `/show`.
pub(super) const SHOW: &str = "`stonechat show MODEL` prints the properties of a model; here /set lists the \
                                parameters, and /system shows the system prompt";

/// Answer to `/help`.
pub(super) fn help() -> String {
    let line = |(name, argument, help): &(&str, &str, &str)| {
        let command = format!("{name} {argument}");
        format!("{command:18}{help}\n")
    };
    COMMANDS.iter().map(line).collect::<String>() + KEYS
}
