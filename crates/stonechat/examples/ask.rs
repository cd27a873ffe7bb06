//! Asks a question and prints the answer as it is written: `ask [MODEL]`.

use std::io::Write;

fn main() -> Result<(), stonechat::Error> {
    let llm = stonechat::Llm::open(std::env::args().nth(1).unwrap_or("qwen3:0.6b".into()))?;
    let mut out = std::io::stdout();
    for piece in llm.chat("Why is the sky blue?") {
        // `| head` closes the pipe, and leaving the loop cancels the answer.
        if write!(out, "{}", piece?).and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    Ok(())
}
