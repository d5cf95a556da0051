#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decks and options that make no sense: the message names key, value and what to write instead, is
printed once, and nothing is started or written."""
from support import DECKS, Case, main, on_ranks, program, sets

QUICKSTART = DECKS / "quickstart.toml"


class BadDeck(Case):
    def refuse(self, *texts, ranks=2, env=None, code=2, options=(), **keys):
        result = self.attention(QUICKSTART, *sets(**keys), *options, ranks=ranks, env=env)
        self.assert_error(result, code, *texts)
        self.assertFalse(self.out.exists())

    def deck(self, text):
        path = self.folder / "deck.toml"
        path.write_text(text)
        return self.attention(path)

    def test_unknown_key_gets_a_suggestion(self):
        self.refuse("unknown key 'attention.sequense'", "did you mean 'attention.sequence'?",
                    attention__sequense=64)

    def test_unknown_key_in_a_deck_is_shown_with_line_and_caret(self):
        result = self.deck("[attention]\nsequence = 64\nquery_head = 4\n")
        self.assert_error(result, 2, "'attention.query_head'", "deck.toml:3", "^^^",
                          "'attention.query_heads'")

    def test_wrong_type(self):
        result = self.deck("[attention]\nbatch = \"two\"\n")
        self.assert_error(result, 2, "attention.batch", "two", "deck.toml:2", "integer")

    def test_syntax_error_of_toml(self):
        self.assert_error(self.deck("[attention]\nsequence = = 3\n"), 2, "deck.toml:2")

    def test_wrong_unit_of_a_size(self):
        self.refuse("attention.sequence", "4Q", attention__sequence="4Q")

    def test_wrong_duration(self):
        self.refuse("soon", "hh:mm:ss", options=["--time-limit", "soon"])

    def test_unknown_option_gets_a_suggestion(self):
        self.refuse("unknown argument '--dryrun'", "'--dry-run'", options=["--dryrun"])

    def test_value_that_is_no_choice(self):
        self.refuse("attention.mask", "casual", "causal", attention__mask="casual")

    def test_element_type_by_another_name(self):
        self.refuse("attention.dtype", "fp16", "'f16'", attention__dtype="fp16")

    def test_unknown_scheme(self):
        self.refuse("attention.schemes", "rong", "ring", attention__schemes="rong")

    def test_value_below_its_minimum(self):
        self.refuse("attention.sequence", "0", attention__sequence=0)

    def test_environment_variable_that_names_no_key(self):
        self.refuse("TESSERA_ATTENTION__SEQUENSE", "TESSERA_ATTENTION__SEQUENCE",
                    env={"TESSERA_ATTENTION__SEQUENSE": "64"})

    def test_deck_missing(self):
        result = self.attention(self.folder / "nowhere.toml")
        self.assert_error(result, 4, "nowhere.toml", "No such file")

    def test_query_heads_no_multiple_of_kv_heads(self):
        self.refuse("attention.query_heads = 8", "attention.kv_heads = 3", "1, 2, 4, 8",
                    attention__kv_heads=3)

    def test_mesh_that_does_not_fill_the_ranks(self):
        self.refuse("attention.mesh.a = 3", "attention.mesh.b = 2", "4",
                    attention__schemes="mesh", attention__mesh__a=3, ranks=4)

    def test_ulysses_over_too_many_ranks(self):
        self.refuse("ulysses", "attention.query_heads = 2", "unified", attention__schemes="ulysses",
                    attention__query_heads=2, attention__kv_heads=2, ranks=4)

    def test_inner_ring_that_does_not_divide_the_ranks(self):
        self.refuse("attention.double_ring.inner = 2", "3 ranks",
                    attention__schemes="double_ring", ranks=3)

    def test_context_unlike_the_ranks(self):
        self.refuse("parallel.context", "2 ranks were started", "start 8 ranks",
                    parallel__context=8)

    def test_more_ranks_than_tokens(self):
        self.refuse("attention.sequence = 3", "4 ranks", attention__schemes="ring",
                    attention__sequence=3, ranks=4)

    def test_memory_estimate_above_what_is_there(self):
        self.refuse("parallel.memory", "1.00 MiB", "attention.sequence", code=3,
                    parallel__memory="1M", attention__schemes="ring")

    def test_unknown_operator_or_backend_pinned(self):
        self.refuse("attention.forwards", ops__pin="attention.forwards=reference",
                    attention__schemes="ring")

    def test_sizes_whose_bytes_overflow(self):
        self.refuse("attention.sequence", "pairs", attention__schemes="ring",
                    attention__sequence="4611686018427387904")

    def test_nothing_to_do(self):
        for key in ("attention.schemes", "attention.passes"):
            self.refuse(key, "nothing to do", attention__schemes="ring", **{key: ""})

    def test_document_of_no_tokens(self):
        self.refuse("attention.document_lengths", "no tokens", attention__mask="documents",
                    attention__document_lengths="5,0", attention__schemes="ring")

    def test_machine_file_missing(self):
        self.refuse("nowhere.toml", code=4, machine__file="nowhere.toml", attention__schemes="ring")

    def test_gpu_that_is_not_there(self):
        self.refuse("parallel.device", "host", code=3, env={"CUDA_VISIBLE_DEVICES": ""},
                    parallel__device="cuda", attention__schemes="ring")

    def test_keys_of_gpus_on_host_ranks(self):
        self.refuse("parallel.transport", "peer", "parallel.device", parallel__transport="peer",
                    attention__schemes="ring")

    def test_channels_of_a_transport_that_has_none(self):
        self.refuse("parallel.nccl_channels", "peer", parallel__device="cuda",
                    parallel__transport="peer", parallel__nccl_channels=4,
                    attention__schemes="ring")

    def test_ranks_started_with_different_options(self):
        command = [program("tessera-attention"), str(QUICKSTART), "--out", str(self.out)]
        pairs = [(sets(attention__sequence=256), sets(attention__sequence=512)),
                 (["--check"], []), ([], ["--help"])]
        for first, second in pairs:  # flags decide which collective calls follow
            result = self.run_command(on_ranks(1, *command, *first, ":",
                                               "-n", 1, *command, *second))
            self.assert_error(result, 2, "[rank 1", " ".join([*command[1:], *first]) + "\n",
                              " ".join([*command[1:], *second]) + "\n", "same command line")


if __name__ == "__main__":
    main()
