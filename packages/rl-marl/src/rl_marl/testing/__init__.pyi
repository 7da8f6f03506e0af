from .group_kit import GroupKit as GroupKit
from .scripted_games import ScriptedGame as ScriptedGame
from .scripted_turns import ScriptedTurns as ScriptedTurns
