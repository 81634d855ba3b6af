"""Teams of agents: simple_spread."""

from fragmenta.zoo.recipe import Recipe, Reference

SPREAD = "jaxmarl:simple_spread"
SCRIPTED = Reference(
    "a scripted team",
    "https://github.com/FLAIROx/JaxMARL/tree/main/jaxmarl/environments/mpe",
    -7.0,
    note="ours; we know of no published returns on this scale; random actions: -26.6",
)

TEAMS = (
    Recipe("mappo-spread", "mappo", SPREAD, 1_280_000, -11.0, SCRIPTED, (-10.4, -9.2, -10.1)),
    Recipe("ippo-spread", "ippo", SPREAD, 1_280_000, -11.0, SCRIPTED, (-10.4, -9.6, -10.0)),
    Recipe("vdn-spread", "vdn", SPREAD, 1_000_000, -11.0, SCRIPTED, (-10.2, -9.8, -10.2)),
    Recipe("qmix-spread", "qmix", SPREAD, 1_000_000, -11.5, SCRIPTED, (-10.9, -11.0, -10.3)),
    Recipe("maddpg-spread", "maddpg", SPREAD, 1_000_000, -11.0, SCRIPTED, (-10.1, -9.9, -10.2)),
)
