//! Asks a question and prints the answer as it is written: `ask [MODEL]`.

use std::io::{Write, stdout};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let llm = stonechat::Llm::open(std::env::args().nth(1).unwrap_or("qwen3:0.6b".into()))?;
    for piece in llm.chat("Why is the sky blue?") {
        write!(stdout(), "{}", piece?)?;
        stdout().flush()?;
    }
    writeln!(stdout())?;
    Ok(())
}
