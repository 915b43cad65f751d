"""Language models on a simulated fleet in virtual time: energy per token at objectives of tokens.

python -m benchmarks.llm [--part traces|heldout|prefixes|disaggregation|live|night|overhead]
                         [--json FILE] [--quick]

Replicas of one model, one on each H100, batch continuously: each step decodes every open answer and
takes in up to a chunk of prompts, and lasts and draws what the profile of language models says
(`services/kit/profiles/core/language.py`). Requests are those of the Azure and Mooncake traces, and
of ServeGen's clients. What a policy must choose is chosen on the first window of a trace, and
reported on later ones (other hours, with another seed each, where arrivals are drawn).

- round robin, least requests: all replicas at the highest clock, as vLLM behind a balancer runs;
- prefix: the router's own choice `by_prefix`, on the trace whose prompts have names of blocks;
- power cap: least requests, and the lowest power limit that keeps the objective;
- plan: replicas and clock that the planner's catalog gives for the busiest minute's tokens;
- consolidated: answers go to as few replicas as their objectives allow, and each replica runs at
  the lowest clock that they allow, by what waits; also at the highest clock, which leaves out what
  the lower clocks save;
- router: the router's own choice `consolidated` at the highest clock, which learns from the answers
  that ended what the policy above knows from the profile, and of servers how many tokens fit into
  their KV cache; also where they do not state it, and at the plan's clock;
- bound: see `bound.py`.

Idle power of all GPUs counts, the parked ones included. Lower clocks draw what `clock_curve` says,
which was measured on a V100; 0.6 is the lowest, for tokens were measured down to 0.57 of a clock.
"""
