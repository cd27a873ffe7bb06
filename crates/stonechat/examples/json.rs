//! Reads an order from a sentence as JSON of a given schema: `json [MODEL]`.
#![expect(clippy::print_stdout, reason = "an example prints")]

use stonechat::serde_json::{self, Value, json};
use stonechat::{ChatRequest, Llm};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let llm = Llm::open(std::env::args().nth(1).unwrap_or("qwen3:0.6b".into()))?;
    let schema = json!({
        "type": "object",
        "properties": {
            "item": { "type": "string", "maxLength": 40 },
            "count": { "type": "integer", "minimum": 1, "maximum": 99 },
        },
        "required": ["item", "count"],
        "additionalProperties": false,
    });
    let chat = ChatRequest::new()
        .system("Extract the order as JSON.")
        .user("Could you please send me three bags of coffee?")
        .json_schema(&schema)
        .thinking(false)
        .temperature(0.0);
    let order: Value = serde_json::from_str(&llm.chat(chat).wait()?.text)?;
    println!("{} x {}", order["count"], order["item"]);
    Ok(())
}
