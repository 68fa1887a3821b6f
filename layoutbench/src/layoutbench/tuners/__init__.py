"""The tuners that LayoutBench knows by name; each is imported when it is used."""

BUILT_IN = {
    "random": "layoutbench.tuners.plain:Random",
    "grid": "layoutbench.tuners.plain:Grid",
    "optuna-tpe": "layoutbench.tuners.optuna_samplers:Tpe",
    "optuna-gp": "layoutbench.tuners.optuna_samplers:Gp",
    "optuna-cmaes": "layoutbench.tuners.optuna_samplers:CmaEs",
    "smac": "layoutbench.tuners.smac_facade:Smac",
    "boosted-ranker": "layoutbench.tuners.boosted:BoostedRanker",
    "deepspeed-grid": "layoutbench.tuners.deepspeed_autotuner:GridOrder",
    "deepspeed-model": "layoutbench.tuners.deepspeed_autotuner:ModelBased",
}
