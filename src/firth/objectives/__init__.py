"""Training objectives: one file each, and one line here that names it."""

OBJECTIVES = {
    "mlm": "firth.objectives.mlm:MaskedLM",
    "clm": "firth.objectives.clm:CausalLM",
    "bilm": "firth.objectives.bidirectional.bilm:BidirectionalLM",
    "plm": "firth.objectives.plm:PermutationLM",
    "rtd": "firth.objectives.rtd:ReplacedTokens",
    "distill": "firth.objectives.distill:Distill",
    "finetune": "firth.objectives.finetune:Finetune",
    "multitask": "firth.objectives.multitask.objective:MultiTask",
    "tag": "firth.objectives.tag:Tag",
    "answer": "firth.objectives.answer:Answer",
}
