"""What vendors and launchers were tested on, as lists, plans and pages state it."""

from trainmark.spec import Text

REAL_RUNS = Text("real runs", "真实运行")
RECORDED_OUTPUTS = Text(
    "recorded outputs of its tool, but no real card yet", "公开的工具输出，尚未在真卡上测试"
)
NOT_STATED = Text("not stated by its package", "厂商模块的软件包未说明")
