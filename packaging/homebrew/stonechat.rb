# Builds from source: brew install --HEAD ./packaging/homebrew/stonechat.rb
class Stonechat < Formula
  desc "Speech to text and language models in one program"
  homepage "https://github.com/stonechat/stonechat"
  license any_of: ["MIT", "Apache-2.0"]
  head "https://github.com/stonechat/stonechat.git", branch: "main"

  depends_on "rust" => :build

  def install
    system "cargo", "build", "--locked", "--profile", "dist", "--package", "stonechat-cli", "--features", "full"
    bin.install "target/dist/stonechat"
    generate_completions_from_executable(bin/"stonechat", "completions")
    system bin/"stonechat", "man-pages", buildpath/"man"
    man1.install Dir["man/*.1"]
  end

  test do
    # The version of a build of HEAD is that of a commit.
    assert_match(/^stonechat \d+\.\d+\.\d+/, shell_output("#{bin}/stonechat --version"))
    assert_match "NAME", shell_output("#{bin}/stonechat models --available")
  end
end
