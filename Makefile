# Everything goes through cargo; this is the front. See CONTRIBUTING.md.

.PHONY: build demo test lint clean cargo

build: cargo ## the release binary, static, at target/release/sandkasten
	scripts/packages install build
	cargo xtask build

demo: ## an agent's first minutes in a real sandbox
	scripts/demo

test: ## every suite, as root or with sudo
	scripts/test

lint: ## format, lints, crate graph, text rules
	scripts/packages install lint
	cargo xtask tidy

clean: cargo
	cargo clean

cargo:
	@command -v cargo >/dev/null || { echo "Rust is missing. Install it with"; \
	  echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --default-toolchain 1.95"; \
	  echo '  . "$$HOME/.cargo/env"'; exit 1; }
