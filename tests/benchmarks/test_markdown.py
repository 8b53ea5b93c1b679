from benchmarks.markdown import markdown_table


def test_columns_are_aligned():
    assert markdown_table(["method", "loss"], [["plain GP", "0.25"], ["a", "12.50"]]) == (
        "| method   |  loss |\n|:---------|------:|\n| plain GP |  0.25 |\n| a        | 12.50 |"
    )
